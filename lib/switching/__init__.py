"""Which protocol to be in, from the cluster's status, and what could have been reached in hindsight."""
