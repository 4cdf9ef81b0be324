//! Programs of others on two mounts of a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::repository::Repository;
use crate::shell;
