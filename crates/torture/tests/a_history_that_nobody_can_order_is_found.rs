//! Goal: the checker of histories finds every broken one and no other. Method: histories by hand, each beside one that is right.

use ashlar_torture::linear::check::{Verdict, check};
use ashlar_torture::linear::{Answer, Call, Path, Verb};
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
