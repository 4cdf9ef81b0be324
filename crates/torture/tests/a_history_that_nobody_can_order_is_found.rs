//! Goal: the checker of histories finds every broken one and no other. Method: histories by hand, each beside one that is right.

use ashlar_torture::linear::check::{Verdict, check};
use ashlar_torture::linear::{Answer, Attributes, Call, Path, Verb};
use ashlar_torture::sys::Errno;

const A: Path = Path { dir: None, name: b'a' };
const B: Path = Path { dir: None, name: b'b' };
const D: Path = Path { dir: None, name: b'd' };
const E: Path = Path { dir: None, name: b'e' };
const D_A: Path = Path { dir: Some(b'd'), name: b'a' };
const E_A: Path = Path { dir: Some(b'e'), name: b'a' };
const ENOENT: Answer = Answer::Failed(Errno(libc::ENOENT));
const EEXIST: Answer = Answer::Failed(Errno(libc::EEXIST));
const EISDIR: Answer = Answer::Failed(Errno(libc::EISDIR));
const ENOTEMPTY: Answer = Answer::Failed(Errno(libc::ENOTEMPTY));
const LOST: Answer = Answer::Unknown(Errno(libc::ETIMEDOUT));

fn history(calls: &[(u64, u64, Verb, Answer)]) -> Vec<Call> {
    let call = |(client, (begin, end, verb, answer)): (usize, &(u64, u64, Verb, Answer))| Call {
        client,
        verb: *verb,
        begin: *begin,
        end: *end,
        answer: *answer,
    };
    calls.iter().enumerate().map(call).collect()
}

#[track_caller]
fn ordered(calls: &[(u64, u64, Verb, Answer)]) {
    assert!(matches!(check(&history(calls)), Verdict::Ordered(_)), "{calls:?}");
}

#[track_caller]
fn broken(calls: &[(u64, u64, Verb, Answer)]) {
    assert!(matches!(check(&history(calls)), Verdict::Broken(_)), "{calls:?}");
}

#[test]
fn a_name_that_was_made_is_there_for_whoever_looks_later() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    ordered(&[made, (11, 20, Verb::Stat(A), Answer::File(7))]);
    ordered(&[made, (5, 20, Verb::Stat(A), ENOENT)]);
    broken(&[made, (11, 20, Verb::Stat(A), ENOENT)]);
    broken(&[made, (11, 20, Verb::Stat(A), Answer::File(8))]);
    broken(&[made, (11, 20, Verb::Stat(A), Answer::Directory)]);
}

#[test]
fn what_one_has_seen_a_later_one_sees() {
    let (made, seen) = ((0, 100, Verb::Create(A), Answer::File(7)), (10, 20, Verb::Stat(A), Answer::File(7)));
    ordered(&[made, seen, (15, 30, Verb::Stat(A), ENOENT)]);
    broken(&[made, seen, (21, 30, Verb::Stat(A), ENOENT)]);
}

#[test]
fn of_two_that_make_or_remove_a_name_one_does() {
    ordered(&[(0, 10, Verb::Create(A), Answer::File(7)), (0, 10, Verb::Create(A), EEXIST)]);
    broken(&[(0, 10, Verb::Create(A), Answer::File(7)), (0, 10, Verb::Create(A), Answer::File(8))]);
    broken(&[(0, 10, Verb::Mkdir(D), EEXIST), (0, 10, Verb::Mkdir(D), EEXIST)]);
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    ordered(&[made, (11, 20, Verb::Unlink(A), Answer::Done), (11, 20, Verb::Unlink(A), ENOENT)]);
    broken(&[made, (11, 20, Verb::Unlink(A), Answer::Done), (11, 20, Verb::Unlink(A), Answer::Done)]);
    broken(&[made, (11, 20, Verb::Unlink(A), ENOENT), (11, 20, Verb::Unlink(A), ENOENT)]);
}

#[test]
fn a_rename_happens_at_one_moment() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    let renamed = (20, 100, Verb::Rename(A, B), Answer::Done);
    ordered(&[made, renamed, (30, 40, Verb::Stat(B), ENOENT), (41, 50, Verb::Stat(A), ENOENT)]);
    broken(&[made, renamed, (30, 40, Verb::Stat(A), ENOENT), (41, 50, Verb::Stat(B), ENOENT)]);
    broken(&[
        made,
        renamed,
        (30, 40, Verb::Stat(B), Answer::File(7)),
        (41, 50, Verb::Stat(A), Answer::File(7)),
    ]);
    // Of two renames of one file only one finds it.
    broken(&[made, renamed, (20, 100, Verb::Rename(A, E), Answer::Done)]);
    // The other way round it is there again: two names are looked at.
    ordered(&[
        made,
        renamed,
        (20, 100, Verb::Rename(B, A), Answer::Done),
        (101, 110, Verb::Stat(A), Answer::File(7)),
    ]);
}

#[test]
fn a_path_is_followed_name_by_name() {
    let (dir, moved) = ((0, 10, Verb::Mkdir(D), Answer::Done), (20, 30, Verb::Rename(D, E), Answer::Done));
    // Who was in the directory before it was moved makes the name there.
    ordered(&[
        dir,
        moved,
        (15, 50, Verb::Create(D_A), Answer::File(7)),
        (51, 60, Verb::Stat(E_A), Answer::File(7)),
    ]);
    broken(&[dir, moved, (31, 50, Verb::Create(D_A), Answer::File(7))]);
    // Nothing is made in a directory that is gone.
    let removed = (20, 30, Verb::Rmdir(D), Answer::Done);
    ordered(&[dir, removed, (15, 50, Verb::Create(D_A), ENOENT)]);
    broken(&[dir, removed, (15, 50, Verb::Create(D_A), Answer::File(7))]);
    broken(&[dir, (11, 12, Verb::Create(D_A), Answer::File(7)), removed]);
    ordered(&[dir, (11, 12, Verb::Create(D_A), Answer::File(7)), (20, 30, Verb::Rmdir(D), ENOTEMPTY)]);
    broken(&[dir, (20, 30, Verb::Rmdir(D), ENOTEMPTY)]);
}

#[test]
fn links_are_names_of_one_file() {
    let (made, linked) =
        ((0, 10, Verb::Create(A), Answer::File(7)), (11, 20, Verb::Link(A, B), Answer::Done));
    let gone = (21, 30, Verb::Unlink(A), Answer::Done);
    ordered(&[made, linked, gone, (31, 40, Verb::Stat(B), Answer::File(7)), (31, 40, Verb::Stat(A), ENOENT)]);
    broken(&[made, linked, gone, (31, 40, Verb::Stat(B), ENOENT)]);
    // A rename between two names of one file changes nothing.
    ordered(&[
        made,
        linked,
        (21, 30, Verb::Rename(A, B), Answer::Done),
        (31, 40, Verb::Stat(A), Answer::File(7)),
    ]);
    broken(&[made, linked, (21, 30, Verb::Rename(A, B), Answer::Done), (31, 40, Verb::Stat(A), ENOENT)]);
    ordered(&[(0, 10, Verb::Mkdir(D), Answer::Done), made, (11, 20, Verb::Rename(A, D), EISDIR)]);
    broken(&[made, (11, 20, Verb::Rename(A, D), EISDIR)]);
}

#[test]
fn a_call_with_an_unknown_end_may_have_happened_at_any_time_later_or_never() {
    let lost = (0, 10, Verb::Create(A), LOST);
    ordered(&[lost, (11, 20, Verb::Stat(A), ENOENT)]);
    ordered(&[lost, (11, 20, Verb::Stat(A), Answer::File(7))]);
    ordered(&[lost, (11, 20, Verb::Stat(A), ENOENT), (21, 30, Verb::Stat(A), Answer::File(7))]);
    broken(&[lost, (11, 20, Verb::Stat(A), Answer::File(7)), (21, 30, Verb::Stat(A), ENOENT)]);
}

/// Of a new file, or a directory: its size is not looked at.
const FRESH: Attributes = Attributes { mode: 0o600, owner: 0, size: 0, mtime: Some(1_800_000_000) };
const FRESH_DIRECTORY: Attributes = Attributes { mode: 0o700, ..FRESH };

#[test]
fn a_change_of_attributes_shows_from_one_moment_on() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    // A file is made at a time that nobody knows.
    let set = (11, 12, Verb::Utimes(A, 1), Answer::Done);
    let before = Attributes { mtime: Some(1), ..FRESH };
    let see = |begin: u64, attributes: Attributes| {
        (begin, begin + 2, Verb::Stat(A), Answer::FileWith(7, attributes))
    };
    for (verb, after) in [
        (Verb::Chmod(A, 0o644), Attributes { mode: 0o644, ..before }),
        (Verb::Chown(A, 3), Attributes { owner: 3, ..before }),
        (Verb::Utimes(A, 5), Attributes { mtime: Some(5), ..before }),
        (Verb::Truncate(A, 300), Attributes { size: 300, mtime: Some(5), ..before }),
    ] {
        let changed = (20, 100, verb, Answer::Done);
        ordered(&[made, set, see(15, before), changed, see(30, before), see(40, after), see(101, after)]);
        // It is not taken back, is there when it was made, and not before.
        broken(&[made, set, changed, see(30, after), see(40, before)]);
        broken(&[made, set, changed, see(101, before)]);
        broken(&[made, set, see(15, after), changed]);
        broken(&[made, set, (20, 100, verb, ENOENT)]);
    }
    broken(&[made, see(15, Attributes { size: 1, ..FRESH })]);
    broken(&[made, (15, 20, Verb::Stat(A), Answer::DirectoryWith(FRESH_DIRECTORY))]);
    broken(&[made, (15, 20, Verb::Stat(A), Answer::FileWith(8, FRESH))]);
}

#[test]
fn of_two_changes_of_attributes_neither_is_lost() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    let (one, other) =
        ((20, 100, Verb::Chmod(A, 0o644), Answer::Done), (20, 100, Verb::Truncate(A, 9), Answer::Done));
    let both = Attributes { mode: 0o644, size: 9, ..FRESH };
    let see = |attributes: Attributes| (101, 110, Verb::Stat(A), Answer::FileWith(7, attributes));
    ordered(&[made, one, other, see(both)]);
    broken(&[made, one, other, see(Attributes { mode: 0o600, ..both })]);
    broken(&[made, one, other, see(Attributes { size: 0, ..both })]);
    // Of two of the same kind one comes last, for everybody.
    let third = (20, 100, Verb::Chmod(A, 0o700), Answer::Done);
    let later = |begin: u64, mode: u32| {
        (begin, begin + 5, Verb::Stat(A), Answer::FileWith(7, Attributes { mode, ..FRESH }))
    };
    ordered(&[made, one, third, later(30, 0o700), later(40, 0o644), later(101, 0o644)]);
    broken(&[made, one, third, later(30, 0o700), later(40, 0o644), later(101, 0o700)]);
}

#[test]
fn attributes_are_those_of_the_file_whatever_its_names_are() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    let linked = (11, 20, Verb::Link(A, B), Answer::Done);
    let changed = (21, 30, Verb::Chmod(A, 0o644), Answer::Done);
    let see =
        |path: Path, attributes: Attributes| (51, 60, Verb::Stat(path), Answer::FileWith(7, attributes));
    let after = Attributes { mode: 0o644, ..FRESH };
    ordered(&[made, linked, changed, see(B, after)]);
    broken(&[made, linked, changed, see(B, FRESH)]);
    let renamed = (31, 40, Verb::Rename(A, E), Answer::Done);
    ordered(&[made, changed, renamed, see(E, after)]);
    broken(&[made, changed, renamed, see(E, FRESH)]);
    // Who found the file before it got another name changes it all the same; who comes later does not find it.
    ordered(&[made, renamed, (15, 50, Verb::Chmod(A, 0o644), Answer::Done), see(E, after)]);
    broken(&[made, renamed, (41, 50, Verb::Chmod(A, 0o644), Answer::Done)]);
    // One that has another file's name changes that.
    let replaced =
        [made, (0, 10, Verb::Create(B), Answer::File(8)), (11, 20, Verb::Rename(B, A), Answer::Done)];
    let seen = |attributes: Attributes| (51, 60, Verb::Stat(A), Answer::FileWith(8, attributes));
    ordered(&[&replaced[..], &[changed, seen(after)]].concat());
    broken(&[&replaced[..], &[changed, seen(FRESH)]].concat());
}

#[test]
fn a_directory_has_permissions_and_an_owner_and_no_length_to_set() {
    let dir = (0, 10, Verb::Mkdir(D), Answer::Done);
    let see =
        |path: Path, attributes: Attributes| (51, 60, Verb::Stat(path), Answer::DirectoryWith(attributes));
    let (changed, given) =
        ((11, 20, Verb::Chmod(D, 0o755), Answer::Done), (21, 30, Verb::Chown(D, 2), Answer::Done));
    let after = Attributes { mode: 0o755, owner: 2, ..FRESH_DIRECTORY };
    ordered(&[dir, see(D, Attributes { size: 4096, ..FRESH_DIRECTORY })]);
    ordered(&[dir, changed, given, see(D, after)]);
    broken(&[dir, changed, given, see(D, Attributes { owner: 0, ..after })]);
    broken(&[dir, changed, given, see(D, Attributes { mode: 0o700, ..after })]);
    ordered(&[dir, changed, given, (31, 40, Verb::Rename(D, E), Answer::Done), see(E, after)]);
    broken(&[dir, changed, given, (31, 40, Verb::Rename(D, E), Answer::Done), see(E, FRESH_DIRECTORY)]);
    ordered(&[dir, (11, 20, Verb::Truncate(D, 0), EISDIR)]);
    broken(&[dir, (11, 20, Verb::Truncate(D, 0), Answer::Done)]);
}

#[test]
fn times_that_a_truncation_changes_are_no_longer_those_that_were_set() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    let (set, cut) =
        ((11, 20, Verb::Utimes(A, 5), Answer::Done), (31, 60, Verb::Truncate(A, 9), Answer::Done));
    let see = |begin: u64, size: i64, mtime: i64| {
        let attributes = Attributes { size, mtime: Some(mtime), ..FRESH };
        (begin, begin + 5, Verb::Stat(A), Answer::FileWith(7, attributes))
    };
    ordered(&[made, set, cut, see(21, 0, 5), see(61, 9, 1_800_000_001)]);
    // The time first: it has a moment of its own.
    ordered(&[made, set, cut, see(35, 0, 1_800_000_001), see(61, 9, 1_800_000_001)]);
    broken(&[made, set, cut, see(21, 0, 6)]);
    broken(&[made, set, cut, see(21, 0, 1_800_000_001)]);
}

#[test]
fn a_file_that_goes_while_it_is_changed_may_be_gone_or_not() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    let gone = (20, 30, Verb::Unlink(A), Answer::Done);
    for verb in [Verb::Chmod(A, 0o644), Verb::Truncate(A, 9)] {
        ordered(&[made, gone, (15, 40, verb, ENOENT)]);
        ordered(&[made, gone, (15, 40, verb, Answer::Done)]);
        broken(&[made, gone, (31, 40, verb, Answer::Done)]);
    }
    let seen = Answer::FileWith(7, FRESH);
    ordered(&[made, gone, (15, 40, Verb::Stat(A), seen)]);
    broken(&[made, gone, (31, 40, Verb::Stat(A), seen)]);
}

#[test]
fn a_change_of_attributes_with_an_unknown_end_may_have_happened_at_any_time_later_or_never() {
    let made = (0, 10, Verb::Create(A), Answer::File(7));
    let lost = (11, 20, Verb::Chmod(A, 0o644), LOST);
    let see = |begin: u64, mode: u32| {
        (begin, begin + 5, Verb::Stat(A), Answer::FileWith(7, Attributes { mode, ..FRESH }))
    };
    ordered(&[made, lost, see(21, 0o600), see(31, 0o644)]);
    ordered(&[made, lost, see(21, 0o600), see(31, 0o600)]);
    broken(&[made, lost, see(21, 0o644), see(31, 0o600)]);
}
