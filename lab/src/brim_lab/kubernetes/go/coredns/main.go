// CoreDNS with no more plugins than a cluster for tests uses: its own command has those of three
// clouds, whose libraries take longer to build than the API server.
package main

import (
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	coremain.Run()
}
