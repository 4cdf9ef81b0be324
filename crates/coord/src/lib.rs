//! Compare-and-set on the cluster state: local file.
