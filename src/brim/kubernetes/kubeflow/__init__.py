"""Jobs of Kubeflow's kinds: their pods run the owner's image and command, and brim says how many."""
