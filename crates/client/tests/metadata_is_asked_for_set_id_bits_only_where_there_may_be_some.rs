//! Goal: the kernel says with every write of an ordinary user that set-id bits must go; that costs no call per write, and bits that are set meanwhile, by
//! this client or another, go all the same. Method: calls to metadata are counted on their way.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::{AllocateMode, Client, Handle, Who, WriteFlags};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents, SessionGrant};
use ashlar_types::message::{MetaReply, MetaRequest, SetAttr};
use ashlar_types::{Capabilities, Credentials, Errno, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use support::{KIB64, World, content, make, write};

/// Metadata, and how often it was called.
struct Counted {
    meta: Arc<dyn MetaCalls>,
    calls: AtomicU64,
}

impl MetaCalls for Counted {
    fn open_session(&self, events: Arc<dyn SessionEvents>) -> Result<SessionGrant, Errno> {
        self.meta.open_session(events)
    }

    fn close_session(&self, session: SessionId) {
        self.meta.close_session(session);
    }

    fn call(&self, caller: Caller<'_>, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.calls.fetch_add(1, SeqCst);
        self.meta.call(caller, request)
    }
}

fn user() -> Who {
    let creds = Credentials {
        uid: 1000,
        gid: 1000,
        caps: Capabilities::default(),
        complete: true,
        ..Credentials::root()
    };
    Who { creds, ..Who::system() }
}

fn write_as_user(client: &Client, file: &Handle) {
    let flags = WriteFlags { kill_set_id: true, ..WriteFlags::default() };
    client.write_as(&user(), file, 0, b"by a user", flags).unwrap();
}

fn set_mode(client: &Client, file: &Handle, mode: u32) {
    let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
    client.setattr(&Who::system(), file.file.inode, None, changes).unwrap();
}

fn mode(client: &Client, file: &Handle) -> u32 {
    client.getattr(&Who::system(), file.file.inode).unwrap().attr.mode & 0o7777
}

#[test]
fn a_thousand_writes_of_a_user_ask_metadata_twice_at_most() {
    let world = World::new(64 << 20);
    let meta = Arc::new(Counted { meta: world.meta.clone(), calls: AtomicU64::new(0) });
    let client = world.client_over(meta.clone());
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 3 * KIB64)).unwrap();
    let before = meta.calls.load(SeqCst);
    for _ in 0..1000 {
        write_as_user(&client, &file);
    }
    let calls = meta.calls.load(SeqCst) - before;
    assert!(calls <= 2, "{calls} calls");
}

#[test]
fn bits_that_anybody_sets_meanwhile_go_with_the_next_write() {
    let world = World::new(64 << 20);
    let (client, other) = (world.client(), world.client());
    let file = make(&client, "f").unwrap();
    write(&client, &file, 0, &content(1, 3 * KIB64)).unwrap();
    for setter in [&client, &other, &other, &client] {
        write_as_user(&client, &file);
        write_as_user(&client, &file);
        write_as_user(&client, &file);
        set_mode(setter, &file, 0o6755);
        assert_eq!(mode(&client, &file), 0o6755);
        write_as_user(&client, &file);
        assert_eq!(
            mode(&client, &file),
            0o755,
            "set by {}",
            if Arc::ptr_eq(setter, &other) { "another" } else { "this" }
        );
    }
}

/// The kernel clears those that it knows of before it asks, and does not say that there may be more.
#[test]
fn an_allocation_by_a_user_clears_bits_that_another_has_set() {
    for bytes in [1000, 3 * KIB64] {
        let world = World::new(64 << 20);
        let (client, other) = (world.client(), world.client());
        let file = make(&client, "f").unwrap();
        write(&client, &file, 0, &content(1, bytes)).unwrap();
        for mode_of in [AllocateMode::Allocate, AllocateMode::KeepSize, AllocateMode::PunchHole] {
            set_mode(&other, &file, 0o6755);
            client.fallocate(&Who::system(), &file, mode_of, (0, 500)).unwrap();
            assert_eq!(mode(&client, &file), 0o6755, "the privileged keep them");
            client.fallocate(&user(), &file, mode_of, (0, 500)).unwrap();
            assert_eq!(mode(&client, &file), 0o755, "{bytes} bytes, {mode_of:?}");
        }
    }
}

#[test]
fn a_copy_by_a_user_clears_bits_that_another_has_set() {
    for bytes in [1000, 3 * KIB64] {
        let world = World::new(64 << 20);
        let (client, other) = (world.client(), world.client());
        let (from, file) = (make(&client, "from").unwrap(), make(&client, "f").unwrap());
        write(&client, &from, 0, &content(2, 1000)).unwrap();
        write(&client, &file, 0, &content(1, bytes)).unwrap();
        set_mode(&other, &file, 0o6755);
        assert_eq!(client.copy_file_range(&Who::system(), (&from, 0), (&file, 0), 500), Ok(500));
        assert_eq!(mode(&client, &file), 0o6755, "the privileged keep them");
        assert_eq!(client.copy_file_range(&user(), (&from, 0), (&file, 0), 500), Ok(500));
        assert_eq!(mode(&client, &file), 0o755, "{bytes} bytes");
    }
}
