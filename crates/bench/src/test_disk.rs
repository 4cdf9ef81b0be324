//! A place for tests on a disk: pages of files on tmpfs cannot be evicted.

/// A directory beside the test program, which is where the build went.
pub fn folder() -> tempfile::TempDir {
    let program = std::env::current_exe().unwrap();
    tempfile::tempdir_in(program.parent().unwrap()).unwrap()
}
