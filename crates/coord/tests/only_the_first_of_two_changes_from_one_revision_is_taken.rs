//! Compare-and-set on the local file, with the simulated disk.

use ashlar_coord::local_file::LocalFile;
use ashlar_coord::{Coord, CoordError};
use ashlar_env::Disk;
use ashlar_env::sim::SimDisk;
use std::sync::Arc;

#[test]
fn only_the_first_of_two_changes_from_one_revision_is_taken() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let coord = LocalFile::new(disk.clone(), "");
    assert_eq!(coord.load().unwrap(), (0, vec![]));
    assert_eq!(coord.compare_and_set(0, b"one").unwrap(), 1);
    assert!(matches!(coord.compare_and_set(0, b"two"), Err(CoordError::Conflict { expected: 0, found: 1 })));
    assert_eq!(LocalFile::new(disk, "").load().unwrap(), (1, b"one".to_vec()));
}
