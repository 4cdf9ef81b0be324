//! Attributes of files and directories, and the rights they give.

use super::{Row, X, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "a changed mode is seen",
        "put x/f old; chmod x/f 644",
        &["chmod x/f 600; tell 1", "mode x/f; await 1; r1 = mode x/f"],
        "",
        &["r1!=600"],
        X,
    ),
    row(
        "a right that was taken away is gone",
        "put x/f old; chmod x/f 644",
        &["chmod x/f 600; tell 1", "was = access x/f; await 1; r1 = access x/f"],
        "",
        &["r1!=EACCES"],
        X,
    ),
    row(
        "a right that was given is there",
        "put x/f old; chmod x/f 600",
        &["chmod x/f 644; tell 1", "was = access x/f; await 1; r1 = access x/f"],
        "",
        &["r1!=ok", "was!=EACCES & was!=ok"],
        X,
    ),
    row(
        "a directory that was closed hides its files",
        "mkdir x/d; put x/d/f old; chmod x/d/f 644; chmod x/d 755",
        &["chmod x/d 700; tell 1", "was = access x/d/f; await 1; r1 = access x/d/f"],
        "",
        &["r1!=EACCES"],
        X,
    ),
    row(
        "a new owner is seen, and the right that goes with it",
        "put x/f old; chmod x/f 600",
        &["chown x/f 65534; tell 1", "was = access x/f; await 1; r1 = owner x/f; r2 = access x/f"],
        "",
        &["r1!=65534", "r2!=ok"],
        X,
    ),
    row(
        "an extended attribute is seen",
        "put x/f old; setx x/f old",
        &["setx x/f new; tell 1", "getx x/f; await 1; r1 = getx x/f"],
        "",
        &["r1!=new"],
        X,
    ),
    row(
        "times that were set are seen",
        "put x/f old; touch x/f 1000",
        &["touch x/f 2000; tell 1", "mtime x/f; await 1; r1 = mtime x/f"],
        "",
        &["r1!=2000"],
        X,
    ),
    row(
        "a write changes the time for everybody while the file is open",
        "put x/f old; touch x/f 1000",
        &["open h x/f w; hwrite h 0 new; tell 1; await 2", "mtime x/f; await 1; r1 = mtime x/f; tell 2"],
        "",
        &["r1=1000"],
        X,
    ),
    row(
        "a new entry changes the time of its directory for everybody",
        "mkdir x/d; touch x/d 1000",
        &["create x/d/n; tell 1", "mtime x/d; await 1; r1 = mtime x/d"],
        "",
        &["r1=1000"],
        X,
    ),
    row(
        "a directory counts the directories in it for everybody",
        "mkdir x/d",
        &[
            "mkdir x/d/a; tell 1; await 2; rmdir x/d/a; tell 3",
            "links x/d; await 1; r1 = links x/d; tell 2; await 3; r2 = links x/d",
        ],
        "",
        &["r1!=3", "r2!=2"],
        X,
    ),
];
