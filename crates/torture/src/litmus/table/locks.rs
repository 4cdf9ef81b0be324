//! Locks between clients, and what is seen under them.

use super::{Row, X, row};

pub(super) const ROWS: &[Row] = &[
    row(
        "a lock of one client keeps others out until it is given back",
        "create x/f",
        &[
            "open h x/f u; flock h ex; tell 1; await 2; flock h un; tell 3",
            "open h x/f u; await 1; r1 = flock h ex; tell 2; await 3; r2 = flock h ex",
        ],
        "",
        &["r1!=EAGAIN", "r2!=ok"],
        X,
    ),
    row(
        "a lock goes with the last close",
        "create x/f",
        &[
            "open h x/f u; flock h ex; tell 1; await 2; close h; tell 3",
            "open h x/f u; await 1; r1 = flock h ex; tell 2; await 3; flock h wait; r2 = flock h ex",
        ],
        "",
        &["r1!=EAGAIN", "r2!=ok"],
        X,
    ),
    row(
        "shared locks go together, and an exclusive one with none",
        "create x/f",
        &[
            "open h x/f u; flock h sh; tell 1; await 2; r3 = flock h ex",
            "open h x/f u; await 1; r1 = flock h ex; r2 = flock h sh; tell 2; await 3",
            "await 2; open h x/f u; r4 = flock h sh; r5 = flock h ex; tell 3",
        ],
        "",
        &["r1!=EAGAIN", "r2!=ok", "r3!=EAGAIN", "r4!=ok", "r5!=EAGAIN"],
        X,
    ),
    row(
        "of two that try for a lock at the same time one gets it",
        "create x/f",
        &["open h x/f u; r1 = flock h ex; tell 1; await 2", "open h x/f u; r2 = flock h ex; tell 2; await 1"],
        "",
        &["r1=ok & r2=ok", "r1!=ok & r2!=ok"],
        X,
    ),
    row(
        "a lock that is handed over brings what was written under it",
        "put x/f 0",
        &[
            "open h x/f u; flock h wait; incr h; flock h un; flock h wait; incr h; flock h un",
            "open h x/f u; flock h wait; incr h; flock h un; flock h wait; incr h; flock h un",
            "open h x/f u; flock h wait; incr h; flock h un; flock h wait; incr h; flock h un",
        ],
        "r1 = read x/f",
        &["r1!=6"],
        X,
    ),
    row(
        "a record lock that is handed over brings what was written under it",
        "put x/f 0; create x/l",
        &[
            "open l x/l u; open h x/f u; lock l 0 1 wait; incr h; lock l 0 1 u; lock l 0 1 wait; incr h; lock l 0 1 u",
            "open l x/l u; open h x/f u; lock l 0 1 wait; incr h; lock l 0 1 u; lock l 0 1 wait; incr h; lock l 0 1 u",
        ],
        "r1 = read x/f",
        &["r1!=4"],
        X,
    ),
    row(
        "what is written before an unlock is read after the lock",
        "put x/f old; create x/l",
        &[
            "open l x/l u; flock l wait; write x/f new; create y/done; flock l un",
            "read x/f; open l x/l u; flock l wait; r1 = stat y/done; r2 = read x/f; flock l un",
        ],
        "",
        &["r1=ok & r2!=new"],
        X,
    ),
    row(
        "record locks exclude each other where they overlap, and only there",
        "create x/f",
        &[
            "open h x/f u; lock h 0 10 w; tell 1; await 2",
            "open h x/f u; await 1; r1 = lock h 5 10 w; r2 = lock h 10 10 w; r3 = lock h 5 1 r; tell 2",
        ],
        "",
        &["r1!=EAGAIN", "r2!=ok", "r3!=EAGAIN"],
        X,
    ),
    row(
        "a record lock that was cut leaves the middle to others",
        "create x/f",
        &[
            "open h x/f u; lock h 0 30 w; lock h 10 10 u; tell 1; await 2",
            "open h x/f u; await 1; r1 = lock h 10 10 w; r2 = lock h 9 1 w; r3 = lock h 20 1 w; tell 2",
        ],
        "",
        &["r1!=ok", "r2!=EAGAIN", "r3!=EAGAIN"],
        X,
    ),
];
