//! One slot of a queue: a header buffer and a payload buffer shared with the kernel.

use crate::errno::Errno;
use crate::protocol::wire::{self, RingReqHeader};
use crate::reply::fixed;
use crate::transport::region::{Region, page_size};
use io_uring::{opcode, squeue, types};
use std::io;
use std::mem::offset_of;
use zerocopy::{FromBytes, IntoBytes};

/// `enum fuse_uring_cmd`.
const CMD_REGISTER: u32 = 1;
const CMD_COMMIT_AND_FETCH: u32 = 2;

/// The device is the only registered file of the ring.
const DEVICE: types::Fixed = types::Fixed(0);

const OP_IN: usize = offset_of!(RingReqHeader, op_in);
const ENT: usize = offset_of!(RingReqHeader, ent);
const PAYLOAD_SZ: usize = ENT + offset_of!(wire::RingEntInOut, payload_sz);

/// Where `addr` and `len` are in `struct io_uring_sqe`.
const SQE_ADDR: usize = 16;
const SQE_LEN: usize = 24;

/// A slot. Between a completion and the next submission its buffers are this process's, otherwise the kernel's.
pub(super) struct Entry {
    /// Index of its queue in the worker.
    pub(super) queue: usize,
    /// The request it holds waits for a deferred reply.
    pub(super) is_parked: bool,
    /// Request id to reply to and commit id of the request it holds.
    pub(super) unique: u64,
    pub(super) commit_id: u64,
    region: Region,
    header_len: usize,
    iovecs: Box<[libc::iovec; 2]>,
}

impl Entry {
    /// # Errors
    /// ENOMEM.
    pub(super) fn new(queue: usize, payload_len: usize) -> io::Result<Self> {
        let header_len = page_size();
        let region = Region::new(header_len + payload_len)?;
        let header = libc::iovec { iov_base: region.start().cast(), iov_len: size_of::<RingReqHeader>() };
        let payload =
            libc::iovec { iov_base: region.start().wrapping_add(header_len).cast(), iov_len: payload_len };
        let iovecs = Box::new([header, payload]);
        Ok(Self { queue, is_parked: false, unique: 0, commit_id: 0, region, header_len, iovecs })
    }

    /// The header and payload areas.
    pub(super) fn areas(&mut self) -> (&mut [u8], &mut [u8]) {
        self.region.bytes_mut().split_at_mut(self.header_len)
    }

    /// The submission that hands this entry to the kernel for the first time.
    pub(super) fn register(&self, qid: u16, user_data: u64) -> squeue::Entry128 {
        let mut sqe = command(CMD_REGISTER, qid, 0, user_data);
        let start = (&raw mut sqe).cast::<u8>();
        // SAFETY: `Entry128` is `struct io_uring_sqe` with its 128 bytes (repr(C)); `addr` and `len` lie within it. The
        // iovecs live in a box of this entry, longer than the kernel needs them (until the submission returns).
        unsafe {
            start.add(SQE_ADDR).cast::<u64>().write_unaligned(self.iovecs.as_ptr() as u64);
            start.add(SQE_LEN).cast::<u32>().write_unaligned(self.iovecs.len() as u32);
        }
        sqe
    }

    /// The submission that replies to the request in this entry and asks for the next.
    pub(super) fn commit(&self, qid: u16, user_data: u64) -> squeue::Entry128 {
        command(CMD_COMMIT_AND_FETCH, qid, self.commit_id, user_data)
    }

    /// Writes the reply's header; its body is the first `body_len` bytes of the payload area.
    pub(super) fn put_reply_header(&mut self, result: Result<(), Errno>, body_len: usize) {
        let head = fixed::header(self.unique, result, body_len);
        let (header, _) = self.areas();
        header[..size_of::<wire::OutHeader>()].copy_from_slice(head.as_bytes());
        // Bodies are no larger than the payload buffer, far below u32.
        header[PAYLOAD_SZ..PAYLOAD_SZ + 4].copy_from_slice(&(body_len as u32).to_ne_bytes());
    }
}

/// What the header area of an entry says about the request in it.
pub(super) struct Arrived {
    pub(super) header: wire::InHeader,
    pub(super) commit_id: u64,
    pub(super) payload_len: usize,
}

impl Arrived {
    /// Reads the header area; `None` if it is too short, which it never is.
    pub(super) fn read(header_area: &[u8]) -> Option<Self> {
        let (header, _) = wire::InHeader::read_from_prefix(header_area).ok()?;
        let (ent, _) = wire::RingEntInOut::read_from_prefix(header_area.get(ENT..)?).ok()?;
        Some(Self { header, commit_id: ent.commit_id, payload_len: ent.payload_sz as usize })
    }
}

/// The fixed argument of the operation, of `len` bytes.
pub(super) fn argument(header_area: &[u8], len: usize) -> Option<&[u8]> {
    header_area.get(OP_IN..ENT)?.get(..len)
}

fn command(op: u32, qid: u16, commit_id: u64, user_data: u64) -> squeue::Entry128 {
    let request = wire::RingCmdReq { flags: 0, commit_id, qid, padding: [0; 6] };
    let mut area = [0u8; 80];
    area[..size_of::<wire::RingCmdReq>()].copy_from_slice(request.as_bytes());
    opcode::UringCmd80::new(DEVICE, op).cmd(area).build().user_data(user_data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_carries_its_buffers_where_the_kernel_looks() {
        let entry = Entry::new(0, 8192).unwrap();
        let sqe = entry.register(3, 0x1122_3344_5566_7788);
        assert_eq!(size_of_val(&sqe), 128);
        // SAFETY: 128 initialised bytes of a plain structure.
        let bytes: [u8; 128] = unsafe { std::mem::transmute(sqe) };
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(word(SQE_ADDR), entry.iovecs.as_ptr() as u64);
        assert_eq!(word(SQE_LEN) & 0xffff_ffff, 2);
        assert_eq!(word(32), 0x1122_3344_5566_7788, "user_data is where io_uring_sqe has it");
        assert_eq!(word(48 + 16) & 0xffff, 3, "queue id in the command area");
    }
}
