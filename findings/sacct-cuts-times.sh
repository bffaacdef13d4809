#!/usr/bin/env bash
# Slurm 22.05.8: `sacct --parsable2` cuts times to 19 characters, and the time zone with them.
#
# SLURM_TIME_FORMAT takes any format of strftime, so '%FT%T%z' asks for times with their zone. --parsable2 prints every other
# field in full, but a time is cut to the width of its column, 19 characters: the zone is missing, and the time reads as one
# without a zone, of another hour. '%d %B %Y %T' loses minutes and seconds, "30 November 2026 03". Nothing is printed about
# it. What helps: seconds ('%s', 10 characters), or a wider column (-o Start%40). Seen on 2026-11-30 with Debian's
# 22.05.8-4+deb12u3 and MariaDB 10.11.19.
#
# Needs: Debian 12 with munge and slurm-client 22.05.8 (apt-get install munge slurm-client) and current lists of packages.
# slurmdbd and MariaDB are unpacked into a temporary folder, 30 MB as packages, and run there without root's rights. A job is
# put into their database by hand: sacct needs no more. Fails if sacct behaves in another way.
set -euo pipefail
folder=$(mktemp -d)
processes=()
cleanup() {
  for process in "${processes[@]}"; do kill "$process" 2>/dev/null || true; done
  wait
  rm -rf "$folder"
}
trap cleanup EXIT
mkdir "$folder/packages" "$folder/root" "$folder/db"
libraries="libmariadb3 liburing2 libsnappy1v5 libaio1 libnuma1 libpmem1 libndctl6 libdaxctl1"
# shellcheck disable=SC2086
(cd "$folder/packages" && apt-get download --quiet slurmdbd=22.05.8-4+deb12u3 slurm-wlm-mysql-plugin=22.05.8-4+deb12u3 \
  mariadb-server-core mariadb-client-core $libraries >/dev/null 2>&1)
for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder/root"; done
libs=$folder/root/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo x86_64-linux-gnu)
export LD_LIBRARY_PATH=$libs
port=$((20000 + $$ % 20000))

head -c 128 /dev/urandom >"$folder/munge.key"
chmod 400 "$folder/munge.key"
munged --foreground --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
  --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" >/dev/null 2>&1 &
processes+=($!)
user=$(id -un)
"$folder/root/usr/bin/mariadb-install-db" --no-defaults --user="$user" --basedir="$folder/root/usr" --datadir="$folder/db" \
  --auth-root-authentication-method=normal --skip-test-db >"$folder/install.log" 2>&1
"$folder/root/usr/sbin/mariadbd" --no-defaults --user="$user" --basedir="$folder/root/usr" --datadir="$folder/db" \
  --socket="$folder/db.socket" --port="$port" --bind-address=127.0.0.1 --plugin-dir="$libs" >"$folder/db.log" 2>&1 &
processes+=($!)
sql() { "$folder/root/usr/bin/mariadb" --no-defaults -u root -S "$folder/db.socket" -e "$1"; }
for _ in $(seq 120); do sql "select 1" >/dev/null 2>&1 && break || sleep 0.5; done
sql "create database slurm; create user slurm@127.0.0.1 identified by 'x'; grant all on slurm.* to slurm@127.0.0.1;
     create user slurm@localhost identified by 'x'; grant all on slurm.* to slurm@localhost"
plugins=$libs/slurm-wlm:${libs#"$folder/root"}/slurm-wlm
cat >"$folder/slurmdbd.conf" <<CONF
AuthInfo=socket=$folder/munge.socket
DbdHost=$(hostname -s)
DbdAddr=127.0.0.1
DbdPort=$((port + 1))
SlurmUser=$user
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$port
StorageUser=slurm
StoragePass=x
StorageLoc=slurm
PidFile=$folder/slurmdbd.pid
PluginDir=$plugins
CONF
chmod 600 "$folder/slurmdbd.conf"
cat >"$folder/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=localhost
SlurmUser=$user
AuthInfo=socket=$folder/munge.socket
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 1))
AccountingStoragePass=$folder/munge.socket
NodeName=n1
CONF
SLURM_CONF=$folder/slurmdbd.conf "$folder/root/usr/sbin/slurmdbd" -D >"$folder/slurmdbd.log" 2>&1 &
processes+=($!)
export SLURM_CONF=$folder/slurm.conf
for _ in $(seq 60); do sacctmgr -i add cluster test >/dev/null 2>&1 && break || sleep 0.5; done
sacctmgr -i add account lab >/dev/null
sacctmgr -i add user "$user" account=lab >/dev/null
sql "insert into slurm.test_job_table (cpus_req, job_name, id_assoc, id_job, id_resv, id_wckey, id_user, id_group, het_job_id,
     het_job_offset, state_reason_prev, nodes_alloc, \`partition\`, priority, state, time_submit, time_eligible, time_start,
     time_end, account) select 1, 'job', max(id_assoc), 1, 0, 0, $(id -u), $(id -g), 0, 4294967294, 0, 1, 'p', 1, 3,
     1796010272, 1796010272, 1796010274, 1796010276, 'lab' from slurm.test_assoc_table"

printed() { SLURM_TIME_FORMAT=$1 sacct -a -X -P -n -S 2026-11-01 -o "$2"; }
export TZ=Europe/Berlin
version=$(sacct -V)
narrow=$(printed %FT%T%z Start)
wide=$(printed %FT%T%z Start%40)
words=$(printed '%d %B %Y %T' Start)
seconds=$(printed %s Start)
echo "$version: with %z '$narrow', in a wide column '$wide', in words '$words', in seconds '$seconds'"
[ "$version" = "slurm-wlm 22.05.8" ]
[ "$narrow" = 2026-11-30T04:44:34 ]
[ "$wide" = 2026-11-30T04:44:34+0100 ]
[ "$words" = "30 November 2026 04" ]
[ "$seconds" = 1796010274 ]
echo "as described"
