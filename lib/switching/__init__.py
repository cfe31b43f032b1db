"""Which protocol to be in, from the cluster's status."""
