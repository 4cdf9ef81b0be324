//! What may not come out where the clients are close-to-open, all of them or some: an open sees what was closed before, a name that was made or taken away
//! is so at once, locks and appends are as ever. What is open may show what was, for a while: that is in no row.

use super::{Row, X, X_OF_THIRD, XY, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "close-to-open: an open sees what was closed before it",
        "put x/f old",
        &[
            "open h x/f w; hwrite h 0 new; close h; tell 1",
            "read x/f; await 1; open h x/f r; r1 = hread h 0 3; r2 = hsize h",
        ],
        "r3 = read x/f",
        &["r1!=new", "r2!=3", "r3!=new"],
        X,
    ),
    row(
        "close-to-open: who has a file open sees it anew by another open",
        "put x/f old",
        &["write x/f newer; tell 1", "open h x/f r; hread h 0 3; await 1; r1 = read x/f; r2 = size x/f"],
        "",
        &["r1!=newer", "r2!=5"],
        X,
    ),
    row(
        "close-to-open: the file that has the name now is opened",
        "put x/f old; put x/g new",
        &["rename x/g x/f; tell 1", "read x/f; await 1; r1 = read x/f; r2 = stat x/g"],
        "",
        &["r1!=new", "r2!=ENOENT"],
        X,
    ),
    row(
        "close-to-open: a name that was made is found by who has not found it before",
        "mkdir x/d",
        &["put x/d/f new; tell 1", "r0 = stat x/d/f; await 1; r1 = read x/d/f"],
        "",
        &["r1!=new"],
        X,
    ),
    row(
        "close-to-open: a name that was removed is gone",
        "put x/f old",
        &["unlink x/f; tell 1", "r0 = read x/f; await 1; r1 = stat x/f; r2 = read x/f"],
        "",
        &["r1!=ENOENT", "r2!=ENOENT"],
        X,
    ),
    row(
        "close-to-open: what was closed is passed on by a third",
        "put x/f old",
        &["write x/f new", "r1 = read x/f; tell 1", "read x/f; await 1; r2 = read x/f"],
        "",
        &["r1=new & r2!=new"],
        X_OF_THIRD,
    ),
    row(
        "close-to-open: of two that write and close and then read the other's file one sees the write",
        "put x/f old; put y/f old",
        &["write x/f new; r1 = read y/f", "write y/f new; r2 = read x/f"],
        "",
        &["r1=old & r2=old"],
        XY,
    ),
    row(
        "close-to-open: a file that was cut and closed is short",
        "put x/f old",
        &["truncate x/f 1; tell 1", "read x/f; size x/f; await 1; r1 = size x/f; r2 = read x/f"],
        "",
        &["r1!=1", "r2!=o"],
        X,
    ),
    row(
        "close-to-open: appends of three clients are not torn",
        "create x/f",
        &[
            "open h x/f a; append h abc; append h abc",
            "open h x/f a; append h def; append h def",
            "open h x/f a; append h ghi; append h ghi",
        ],
        "r1 = size x/f; r2 = count x/f abc; r3 = count x/f def; r4 = count x/f ghi",
        &["r1!=18", "r2!=2", "r3!=2", "r4!=2"],
        X,
    ),
    row(
        "close-to-open: pieces of one page that two clients write do not damage each other",
        "put x/f oldold",
        &["open h x/f w; hwrite h 0 aaa; close h", "open h x/f w; hwrite h 3 bbb; close h"],
        "r1 = read x/f",
        &["r1!=aaabbb"],
        X,
    ),
];
