"""Start and stop the processes of a job and observe them."""
