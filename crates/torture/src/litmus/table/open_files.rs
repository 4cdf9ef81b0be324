//! Files that one client has open while another changes their names.

use super::{Row, X, XY, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "a file that another client unlinks stays readable to who has it open",
        "put x/f old",
        &[
            "await 1; unlink x/f; tell 2",
            "open h x/f r; tell 1; await 2; r1 = hread h 0 3; r2 = stat x/f; r3 = hlinks h",
        ],
        "",
        &["r1!=old", "r2!=ENOENT", "r3!=0"],
        X,
    ),
    row(
        "a file that was unlinked keeps what is written to it",
        "put x/f old",
        &[
            "await 1; unlink x/f; tell 2",
            "open h x/f u; tell 1; await 2; hwrite h 3 more; r1 = hread h 0 7; r2 = hsize h; r3 = read x/f",
        ],
        "",
        &["r1!=oldmore", "r2!=7", "r3!=ENOENT"],
        X,
    ),
    row(
        "two clients share a file that has no name any more",
        "put x/f old",
        &[
            "open h x/f u; tell 1; await 2; unlink x/f; hwrite h 0 new; tell 3; await 4; r2 = hread h 0 3",
            "open h x/f u; await 1; tell 2; await 3; r1 = hread h 0 3; hwrite h 0 own; tell 4",
        ],
        "",
        &["r1!=new", "r2!=own"],
        XY,
    ),
    row(
        "a name that was given anew is another file than the open one",
        "put x/f old",
        &[
            "await 1; unlink x/f; put x/f new; tell 2",
            "open h x/f r; tell 1; await 2; r1 = hread h 0 3; r2 = read x/f",
        ],
        "",
        &["r1!=old", "r2!=new"],
        X,
    ),
    row(
        "an open file that is replaced by a rename stays what it was",
        "put x/f old; put x/new new",
        &[
            "await 1; rename x/new x/f; tell 2",
            "open h x/f r; tell 1; await 2; r1 = hread h 0 3; r2 = read x/f",
        ],
        "",
        &["r1!=old", "r2!=new"],
        X,
    ),
    row(
        "what is written to an open file is under the name it was given meanwhile",
        "put x/f old",
        &[
            "await 1; rename x/f x/g; tell 2; await 3; r1 = read x/g",
            "open h x/f w; tell 1; await 2; hwrite h 0 new; tell 3",
        ],
        "",
        &["r1!=new"],
        X,
    ),
    row(
        "an open file that loses its write permission can still be written",
        "put x/f old",
        &[
            "await 1; chmod x/f 0; tell 2; await 3; r1 = read x/f",
            "open h x/f w; tell 1; await 2; hwrite h 0 new; tell 3",
        ],
        "r2 = mode x/f",
        &["r1!=new", "r2!=0"],
        X,
    ),
    row(
        "a write that returned before the removal of another name is not lost",
        "put x/f old; link x/f x/g",
        &[
            "open h x/f w; hwrite h 0 new; tell 1; await 2",
            "read x/g; await 1; unlink x/f; r1 = read x/g; tell 2",
        ],
        "",
        &["r1!=new"],
        X,
    ),
];
