//! Work on names that shows whether a call was carried out once, and whether anything was lost.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One thread's work on names of its own: nothing of it may fail, and nothing may be done twice.
pub fn change_names(dir: &Path, turn: u64) {
    let (a, b, c) =
        (dir.join(format!("a{turn}")), dir.join(format!("b{turn}")), dir.join(format!("c{turn}")));
    let mut file = File::options().write(true).create_new(true).open(&a).unwrap();
    file.write_all(b"first").unwrap();
    fs::rename(&a, &b).unwrap();
    fs::hard_link(&b, &c).unwrap();
    file.write_all(b" second").unwrap();
    drop(file);
    assert_eq!(fs::metadata(&c).unwrap().nlink(), 2);
    fs::remove_file(&b).unwrap();
    assert_eq!(fs::read(&c).unwrap(), b"first second");
    fs::create_dir(&a).unwrap();
    fs::rename(&c, a.join("inside")).unwrap();
    if turn.is_multiple_of(2) {
        fs::remove_file(a.join("inside")).unwrap();
        fs::remove_dir(&a).unwrap();
    }
    let mut log = File::options().append(true).create(true).open(dir.join("log")).unwrap();
    log.write_all(format!("{turn:09}\n").as_bytes()).unwrap();
}

/// What [`change_names`] has left, as another mount sees it.
#[track_caller]
pub fn check_names(dir: &Path, turns: u64) {
    let log = fs::read_to_string(dir.join("log")).unwrap();
    let expected: String = (0..turns).map(|turn| format!("{turn:09}\n")).collect();
    assert!(log == expected, "the log in {} has other lines than were appended", dir.display());
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<String> = names.collect();
    left.sort();
    let mut expected: Vec<String> =
        (0..turns).filter(|turn| turn % 2 == 1).map(|turn| format!("a{turn}")).collect();
    expected.push("log".into());
    expected.sort();
    assert_eq!(left, expected);
    for name in left.iter().filter(|name| *name != "log") {
        assert_eq!(fs::read(dir.join(name).join("inside")).unwrap(), b"first second");
    }
}
