//! Writes of several actors to one file at a time, past every cache (SHARE).
//!
//! Which of two that were under way together is the last one, byte for byte, nobody can tell before somebody has looked, and a read beside them sees of each what is there already.
//! So the model has the bytes of one, and here are those that may be there instead: until a write that began after both has gone over them, or a read
//! beside no write has told.

use super::{Oracle, Pending};
use crate::content::Content;
use crate::model::{Actor, Op, Outcome};
use ashlar_client::AllocateMode;
use ashlar_types::Timespec;
use std::sync::Arc;

/// Bytes of a write, from one place up to another.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Which write.
    write: u64,
    from: u64,
    to: u64,
    /// Where its first byte is.
    origin: u64,
    data: Arc<Vec<u8>>,
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        &self.data[(self.from - self.origin) as usize..(self.to - self.origin) as usize]
    }

    /// What of it is in a range.
    fn within(&self, (from, to): (u64, u64)) -> Option<Piece> {
        let (from, to) = (self.from.max(from), self.to.min(to));
        (from < to).then(|| Piece { from, to, ..self.clone() })
    }
}

/// Takes a range out of those `pieces` that `is_meant` means.
fn cut(pieces: &mut Vec<Piece>, (from, to): (u64, u64), is_meant: impl Fn(&Piece) -> bool) {
    let rests = |piece: &Piece| [piece.within((0, from)), piece.within((to, u64::MAX))];
    let all = std::mem::take(pieces);
    for piece in all {
        if is_meant(&piece) {
            pieces.extend(rests(&piece).into_iter().flatten());
        } else {
            pieces.push(piece);
        }
    }
}

/// What is known of an operation under way because of those beside it.
#[derive(Default)]
pub(super) struct Beside {
    /// Of a write: its number, and what others have written since it began.
    number: u64,
    written: Vec<Piece>,
    /// Of a read: contents of which it may have seen parts, and whether it may have seen parts of several.
    contents: Vec<Content>,
    is_mixed: bool,
    /// Whether no other write of the file was under way at any moment of it.
    is_quiet: bool,
}

/// When a file was changed the last time, as far as that was answered.
#[derive(Clone, Copy, Debug)]
pub struct KnownChange {
    inode: u64,
    at: Option<Timespec>,
    losses: u64,
}

/// The file that `op` writes beside others.
fn written_beside(op: &Op) -> Option<u64> {
    op.inode().filter(|_| op.is_beside())
}

impl Pending {
    /// Whether no other write of its file was under way at any moment of it.
    pub(super) fn is_quiet(&self) -> bool {
        self.beside.is_quiet
    }
}

impl Oracle {
    /// What there is to know of `op`, which `actor` begins.
    pub(super) fn begin_beside(&mut self, op: &Op) -> Beside {
        self.writes += 1;
        let is_of_it = |pending: &Pending| pending.op.is_write() && pending.op.inode() == op.inode();
        let is_quiet = !self.pending.values().any(is_of_it);
        if op.is_write() {
            let same = self.pending.values_mut().filter(|pending| pending.op.inode() == op.inode());
            same.for_each(|pending| pending.beside.is_quiet = false);
        }
        Beside { number: self.writes, is_quiet, ..Beside::default() }
    }

    /// Whether `actor` and `other` write one file beside each other, so that neither has waited for the other.
    pub(super) fn are_beside(&self, actor: Actor, other: &Pending) -> bool {
        let own = self.pending.get(&actor).and_then(|pending| written_beside(&pending.op));
        own.is_some() && own == written_beside(&other.op)
    }

    /// Whether there is more than one thing that may be in `inode`.
    pub(super) fn is_in_doubt(&self, inode: u64) -> bool {
        self.doubts.get(&inode).is_some_and(|pieces| !pieces.is_empty())
    }

    /// What may be in `inode` instead of what the model has, each with the bytes of one write more.
    pub(super) fn variants(&self, inode: u64) -> Vec<Content> {
        let (Some(content), Some(pieces)) = (self.model.content(inode), self.doubts.get(&inode)) else {
            return Vec::new();
        };
        let with = |piece: &Piece| {
            let mut content = content.clone();
            content.write(piece.from, piece.bytes());
            content
        };
        pieces.iter().map(with).collect()
    }

    /// The file whose bytes `op`, carried out now, sets or takes away, and from where to where.
    fn extent(&self, op: &Op) -> Option<(u64, (u64, u64))> {
        let size = |inode: u64| self.model.content(inode).map_or(0, Content::size);
        Some(match op {
            Op::Write { inode, offset, data, append, .. } => {
                let at = if *append { size(*inode) } else { *offset };
                (*inode, (at, at + data.len() as u64))
            }
            Op::Allocate { inode, mode, offset, len } => match mode {
                AllocateMode::Allocate | AllocateMode::KeepSize => return None,
                _ => (*inode, (*offset, offset + len)),
            },
            Op::Truncate { inode, size, .. } => (*inode, (*size, u64::MAX)),
            Op::Open { inode, truncate: true } => (*inode, (0, u64::MAX)),
            Op::Create { parent, name, truncate: true, .. } => {
                (self.model.child(*parent, name)?, (0, u64::MAX))
            }
            _ => return None,
        })
    }

    /// Notes that the operation of `actor` is about to be carried out in the model; `is_alone` if nobody was beside it.
    pub(super) fn note_written(&mut self, actor: Actor, is_alone: bool) {
        let Some(op) = self.pending.get(&actor).map(|pending| pending.op.clone()) else { return };
        let Some((inode, range)) = self.extent(&op) else { return };
        let doubts = self.doubts.entry(inode).or_default();
        // What is there is what began last.
        cut(doubts, range, |_| true);
        let Some(pending) = self.pending.get_mut(&actor) else { return };
        let is_beside = pending.op.is_beside() && !is_alone;
        let (number, mut written) = (pending.beside.number, Vec::new());
        if is_beside {
            written = std::mem::take(&mut pending.beside.written);
            doubts.extend(written.iter().filter_map(|piece| piece.within(range)));
        }
        let piece = match op {
            Op::Write { data, .. } => {
                Some(Piece { write: number, from: range.0, to: range.1, origin: range.0, data })
            }
            _ => None,
        };
        for (other, pending) in &mut self.pending {
            if *other == actor || pending.is_applied || pending.op.inode() != Some(inode) {
                continue;
            }
            // What had ended before this one began is under it.
            let is_earlier =
                |old: &Piece| !is_beside || written.iter().all(|beside| beside.write != old.write);
            cut(&mut pending.beside.written, range, is_earlier);
            let may_be_last =
                is_beside && pending.op.is_beside() || matches!(pending.op, Op::Allocate { .. });
            pending.beside.written.extend(piece.clone().filter(|_| may_be_last));
        }
    }

    /// What others have written since `actor` began to zero a range, where it found nothing to zero: it was there before. So it is where they share no file, too: the lease is given back while that
    /// which was found is made durable.
    pub(super) fn put_back(&mut self, actor: Actor) {
        let Some(pending) = self.pending.get_mut(&actor) else { return };
        let Op::Allocate { inode, .. } = pending.op else { return };
        let written = std::mem::take(&mut pending.beside.written);
        if !pending.has_stored
            && let Some(content) = self.model.content_mut(inode)
        {
            written.iter().for_each(|piece| content.write(piece.from, piece.bytes()));
        }
    }

    /// Notes what a read of `actor` that is under way may see at this moment.
    pub(super) fn note_seen(&mut self, actor: Actor) {
        let Some(Op::Read { inode, .. }) = self.pending.get(&actor).map(|pending| pending.op.clone()) else {
            return;
        };
        let mut seen = self.variants(inode);
        let mut is_mixed = !seen.is_empty();
        seen.extend(self.model.content(inode).cloned());
        for (&other, pending) in &self.pending {
            if other != actor && pending.op.is_write() && pending.op.inode() == Some(inode) {
                is_mixed |= written_beside(&pending.op).is_some();
                if !pending.is_applied {
                    let mut model = self.model.clone();
                    model.run(other, &pending.op, 0);
                    seen.extend(model.content(inode).cloned());
                }
            }
        }
        if let Some(pending) = self.pending.get_mut(&actor) {
            pending.beside.is_mixed |= is_mixed;
            seen.into_iter().for_each(|content| super::push_new(&mut pending.beside.contents, content));
        }
    }

    /// Whether a read, done beside writes, may have been answered so: each byte was there at some moment of it, and so was the length.
    pub(super) fn is_mixture(pending: &Pending, outcome: &Outcome) -> bool {
        let (Op::Read { offset, .. }, Outcome::Bytes(bytes)) = (&pending.op, outcome) else { return false };
        let has_length =
            |allowed: &Outcome| matches!(allowed, Outcome::Bytes(theirs) if theirs.len() == bytes.len());
        pending.beside.is_mixed
            && pending.allowed.iter().any(has_length)
            && Content::is_mixture(*offset, bytes, &pending.beside.contents)
    }

    /// A read of `pending` that was right has told what is in the file, unless something was being written.
    pub(super) fn learn(&mut self, pending: &Pending, outcome: &Outcome) {
        let (Op::Read { inode, offset, .. }, Outcome::Bytes(bytes)) = (&pending.op, outcome) else { return };
        let (inode, range) = (*inode, (*offset, offset + bytes.len() as u64));
        let is_known = !pending.beside.is_quiet
            || !self.is_in_doubt(inode)
            || self.model.nodes.get(&inode).is_none_or(|node| node.is_uncertain || node.is_hidden);
        if is_known || bytes.is_empty() {
            return;
        }
        if let Some(pieces) = self.doubts.get_mut(&inode) {
            cut(pieces, range, |_| true);
        }
        if let Some(content) = self.model.content_mut(inode) {
            content.write(range.0, bytes);
        }
        self.note_content(inode);
    }

    /// A write of `inode` that began at `time` has been answered.
    pub fn note_write_time(&mut self, inode: u64, time: Timespec) {
        let known = self.changed_at.entry(inode).or_insert(time);
        *known = time.max(*known);
    }

    /// What of a time of change of `inode` nobody may be told an earlier one of.
    pub fn known_change(&self, inode: u64) -> KnownChange {
        KnownChange { inode, at: self.changed_at.get(&inode).copied(), losses: self.losses }
    }

    /// Sessions end, and times that they have not told with them.
    pub(super) fn lose_times(&mut self) {
        self.changed_at.clear();
        self.losses += 1;
    }

    /// `actor` was told, by a call that began when `known` was, that the file was changed the last time at `told`.
    pub fn judge_time(&mut self, actor: Actor, known: KnownChange, told: Timespec) {
        let KnownChange { inode, at, losses } = known;
        if let Some(at_least) = at.filter(|at| told < *at && losses == self.losses)
            && !self.is_excused(actor)
        {
            self.fail(format!(
                "actor {actor}: {inode:x} is said to have changed at {told:?}, and a write that began at {at_least:?} had been answered before"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ROOT, View};

    /// A file of ten bytes that actors 0 to 2 have open.
    fn oracle() -> (Oracle, u64) {
        let mut oracle = Oracle { may_share: true, ..Oracle::new() };
        let inode = 5;
        let create = Op::Create { parent: ROOT, name: "f".into(), exclusive: true, truncate: false };
        for actor in 0..3 {
            let opens = if actor == 0 { create.clone() } else { Op::Open { inode, truncate: false } };
            oracle.model.run(actor, &opens, inode);
        }
        write(&mut oracle, 0, (0, b"0000000000"));
        (oracle, inode)
    }

    fn begin_write(oracle: &mut Oracle, actor: Actor, (offset, data): (u64, &[u8])) {
        let data = Arc::new(data.to_vec());
        oracle.invoke(actor, Op::Write { inode: 5, offset, data, append: false, is_beside: true });
    }

    fn end_write(oracle: &mut Oracle, actor: Actor) {
        oracle.stored(actor, 5);
        oracle.answered(actor, &Outcome::Done, false);
    }

    fn write(oracle: &mut Oracle, actor: Actor, put: (u64, &[u8])) {
        begin_write(oracle, actor, put);
        end_write(oracle, actor);
    }

    /// Whether a read of everything may be answered so.
    fn may_read(oracle: &mut Oracle, bytes: &[u8]) -> bool {
        oracle.invoke(2, Op::Read { inode: 5, offset: 0, len: 100 });
        oracle.answered(2, &Outcome::Bytes(bytes.to_vec()), false);
        std::mem::take(&mut oracle.failures).is_empty()
    }

    #[test]
    fn of_two_writes_beside_each_other_either_may_be_the_last_until_somebody_has_looked() {
        let (mut oracle, _) = oracle();
        begin_write(&mut oracle, 0, (0, b"aaaaaa"));
        begin_write(&mut oracle, 1, (3, b"bbbbb"));
        end_write(&mut oracle, 1);
        end_write(&mut oracle, 0);
        assert!(!may_read(&mut oracle, b"aaa0aabb00"), "that was before both");
        assert!(!may_read(&mut oracle, b"baaabbbb00"), "nobody has written that there");
        assert!(may_read(&mut oracle, b"aaabbbbb00"));
        assert!(!may_read(&mut oracle, b"aaaaaabb00"), "it was seen to be the other one");
        assert!(may_read(&mut oracle, b"aaabbbbb00"));
    }

    #[test]
    fn what_began_after_an_end_is_over_it() {
        let (mut oracle, _) = oracle();
        begin_write(&mut oracle, 0, (0, b"aaaaaa"));
        write(&mut oracle, 1, (0, b"bbb"));
        write(&mut oracle, 1, (1, b"ccc"));
        end_write(&mut oracle, 0);
        assert!(!may_read(&mut oracle, b"abbcaa0000"), "the second of them is over the first");
        write(&mut oracle, 1, (0, b"ddd"));
        assert!(!may_read(&mut oracle, b"aaacaa0000"));
        assert!(may_read(&mut oracle, b"dddcaa0000"));
    }

    #[test]
    fn a_read_beside_a_write_sees_a_part_of_it_and_one_after_it_all() {
        let (mut oracle, inode) = oracle();
        begin_write(&mut oracle, 0, (8, b"aaaa"));
        assert!(may_read(&mut oracle, b"00000000a0"));
        assert!(may_read(&mut oracle, b"00000000aaaa"));
        assert!(!may_read(&mut oracle, b"00000000aaa"));
        end_write(&mut oracle, 0);
        assert!(!may_read(&mut oracle, b"00000000a0"));
        oracle.invoke(2, Op::Getattr { inode });
        let view = |size| View { inode, mode: 0o100_644, nlink: 1, size };
        oracle.answered(2, &Outcome::Attr(view(10)), false);
        assert!(!oracle.failures.is_empty(), "it is longer for everybody");
    }

    #[test]
    fn a_cut_takes_every_doubt_with_it() {
        let (mut oracle, inode) = oracle();
        begin_write(&mut oracle, 0, (0, b"aaaaaa"));
        begin_write(&mut oracle, 1, (0, b"bbbbbb"));
        end_write(&mut oracle, 0);
        end_write(&mut oracle, 1);
        assert!(oracle.is_in_doubt(inode) && oracle.variants(inode).len() == 1);
        oracle.note_write_time(inode, Timespec::new(7, 0));
        oracle.invoke(0, Op::Truncate { inode, size: 0, by_handle: false });
        oracle.apply(0, 0, true);
        assert!(!oracle.is_in_doubt(inode));
        oracle.judge_time(1, oracle.known_change(inode), Timespec::new(6, 9));
        assert_eq!(oracle.failures.len(), 1);
    }
}
