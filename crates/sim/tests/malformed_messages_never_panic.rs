//! Goal: no message, however malformed, makes a service panic, hang or leave an unsound namespace; every decoder of a message answers. Method:
//! templates of all requests with ids that exist, encoded with some of their fields changed, decoded, and given to running services.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

mod support;

use ashlar_env::sim::SimEntropy;
use ashlar_rpc::wire::{Attend, Attended, MetaAnswer, StorageCall, TargetPlace, Under};
use ashlar_rpc::{Caller, MetaCalls, Payload, SessionEvents, StorageCalls};
use ashlar_sim::audit;
use ashlar_types::codec::{decode, encode};
use ashlar_types::message::{
    ChunkWritten, DataGrant, DirEntry, LeaseSet, LockKind, LockRange, LockRequest, LossMark, MetaReply,
    MetaRequest, OpenReply, Recall, Reclaim, Reclaimed, ReclaimedFile, RenameFlags, SessionEvent, SetAttr,
    StorageReply, StorageRequest, SyncScope, TimeSet, ToldClose,
};
use ashlar_types::node::SessionOwner;
use ashlar_types::testing::mutated;
use ashlar_types::{
    Capability, ChainId, ChunkId, ClusterId, Credentials, DescriptionId, Durability, Epoch, Errno,
    FileLayout, FileType, FilesetId, GrantedCapability, InodeId, LayoutPolicy, LockOwner, Name, NameHash,
    NodeId, OfChains, OpId, OpenProof, Rights, Seal, SealedCapability, SessionId, ShardSet, StatFs, TargetId,
    Timespec,
};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use support::{CHUNK_BYTES, Services};

const ROUNDS: u64 = 10_000;
/// Rounds after which the templates get new files: what they named may be gone.
const ROUNDS_PER_SAMPLE: u64 = 250;
/// Longest read that is carried out, bytes: a service gets its buffer from the caller.
const READ_BYTES_MAX: u32 = 1 << 20;

struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _event: SessionEvent) {}
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// A session, and files that its calls are about.
struct Sample<'s> {
    services: &'s Services,
    session: SessionId,
    sequence: u64,
    directory: InodeId,
    inline: InodeId,
    chunked: InodeId,
    link: InodeId,
    layout: FileLayout,
}

impl<'s> Sample<'s> {
    fn new(services: &'s Services, number: u64) -> Sample<'s> {
        let session = services.meta.open_session(Arc::new(Deaf)).unwrap().session;
        let layout = FileLayout {
            generation: 1,
            chunk_bytes: CHUNK_BYTES as u32,
            chains: [ChainId(0)].into_iter().collect(),
        };
        let none = InodeId(0);
        let mut sample = Sample {
            services,
            session,
            sequence: 0,
            directory: none,
            inline: none,
            chunked: none,
            link: none,
            layout,
        };
        let parent = InodeId::ROOT;
        let text = format!("d{number}");
        sample.directory =
            sample.make(MetaRequest::Mkdir { parent, name: name(&text), mode: 0o777, umask: 0 });
        let create = |parent, text| MetaRequest::Create {
            parent,
            name: name(text),
            mode: 0o666,
            umask: 0,
            exclusive: true,
            read: true,
            write: true,
            truncate: false,
            handle: DescriptionId(1),
        };
        sample.inline = sample.make(create(sample.directory, "inline"));
        sample.chunked = sample.make(create(sample.directory, "chunked"));
        let parent = sample.directory;
        sample.link = sample.make(MetaRequest::Symlink { parent, name: name("link"), target: b"inline" });
        let write = |inode| MetaRequest::WriteInline {
            inode,
            offset: 0,
            data: b"content",
            append: false,
            kill_set_id: false,
            is_writeback: false,
        };
        sample.call(write(sample.inline)).unwrap();
        let reply = sample.call(MetaRequest::ProposeLayout { inode: sample.chunked }).unwrap();
        let MetaReply::Layout { layout, is_bound: true } = reply else { panic!("{reply:?}") };
        sample.layout = layout;
        sample
    }

    fn make(&mut self, mut request: MetaRequest<'_>) -> InodeId {
        let mut answer = self.call(request.clone());
        if answer == Err(Errno::EREMOTE) {
            // A request of before has split the root.
            for (parent, name) in request.places().into_iter().flatten() {
                let told = self.call(MetaRequest::Slices { directory: *parent });
                let Ok(MetaReply::Slices(split)) = told else { panic!("{told:?}") };
                *parent = split.slices[NameHash::of(name, &split.hash_key).slice(split.slices.len())];
            }
            answer = self.call(request);
        }
        match answer.unwrap() {
            MetaReply::Attr { attr, .. } => attr.inode,
            MetaReply::Opened { open, .. } => open.attr.inode,
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.call_as(&Credentials::root(), request)
    }

    fn call_as(&mut self, creds: &Credentials, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        self.sequence += 1;
        let op = OpId { session: self.session, sequence: self.sequence };
        self.services.meta.call(Caller::new(op, creds), request)
    }

    fn chunk(&self) -> ChunkId {
        ChunkId { inode: self.chunked, generation: self.layout.generation, index: 0 }
    }

    /// One of each request about names and attributes.
    fn requests_about_names(&self) -> Vec<MetaRequest<'static>> {
        let (parent, inode, chunked) = (self.directory, self.inline, self.chunked);
        let (old, new) = (name("inline"), name("new"));
        let changes = changes();
        let (mode, umask) = (0o644, 0o022);
        vec![
            MetaRequest::Lookup { parent, name: old },
            MetaRequest::Getattr { inode },
            MetaRequest::Setattr { inode, changes },
            MetaRequest::Setattr { inode: chunked, changes },
            MetaRequest::Create {
                parent,
                name: new,
                mode,
                umask,
                exclusive: false,
                read: true,
                write: true,
                truncate: true,
                handle: DescriptionId(2),
            },
            MetaRequest::Mkdir { parent, name: name("sub"), mode, umask },
            MetaRequest::Mknod { parent, name: name("node"), mode: libc::S_IFIFO | mode, umask, rdev: 7 },
            MetaRequest::Symlink { parent, name: name("symlink"), target: b"../somewhere" },
            MetaRequest::Link { inode, parent, name: name("second") },
            MetaRequest::Unlink { parent, name: name("second") },
            MetaRequest::Rmdir { parent, name: name("sub") },
            MetaRequest::Rename {
                from_parent: parent,
                from_name: new,
                to_parent: InodeId::ROOT,
                to_name: name("moved"),
                flags: RenameFlags::Replace,
            },
            MetaRequest::Tmpfile { parent, mode, umask, handle: DescriptionId(3) },
            MetaRequest::Open { inode, read: true, write: true, truncate: false, handle: DescriptionId(4) },
            MetaRequest::Release { inode, handle: DescriptionId(4) },
            MetaRequest::Closes {
                of: vec![ToldClose { inode, handle: DescriptionId(4), atime: Some(Timespec::default()) }],
            },
            MetaRequest::Readlink { inode: self.link },
            MetaRequest::Readdir { directory: parent, after: 0, bytes_max: 4096, with_attributes: true },
            MetaRequest::Access { inode, mask: 7 },
            MetaRequest::Getxattr { inode, name: b"user.a" },
            MetaRequest::Listxattr { inode },
            MetaRequest::Setxattr {
                inode,
                name: b"user.a",
                value: b"value",
                create: false,
                replace: false,
                kill_setgid: false,
            },
            MetaRequest::Setxattr {
                inode: parent,
                name: b"system.posix_acl_default",
                value: &ACL,
                create: false,
                replace: false,
                kill_setgid: true,
            },
            MetaRequest::Removexattr { inode, name: b"user.a" },
        ]
    }

    /// One of each request about content, locks and layouts.
    fn requests_about_content(&self) -> Vec<MetaRequest<'static>> {
        let (parent, inode, chunked) = (self.directory, self.inline, self.chunked);
        let through = DescriptionId(1);
        let range = LockRange { start: 5, end: 99 };
        let request =
            LockRequest { inode, owner: LockOwner(1), pid: 1, kind: LockKind::Write, range, is_flock: false };
        let offset = 3;
        let proof = Some(OpenProof { write: true, mac: [7; 32] });
        let file = ReclaimedFile {
            inode,
            handles: vec![(DescriptionId(9), true)],
            leases: LeaseSet::CONTENT,
            proof,
        };
        vec![
            MetaRequest::Statfs,
            MetaRequest::Reclaim { server: NodeId(0), incarnation: 1, part: Reclaim::Files(vec![file]) },
            MetaRequest::Reclaim {
                server: NodeId(0),
                incarnation: 1,
                part: Reclaim::Locks(vec![(request, through)]),
            },
            MetaRequest::Reclaim { server: NodeId(0), incarnation: 1, part: Reclaim::Done },
            MetaRequest::ReadInline { inode, offset, len: 10 },
            MetaRequest::WriteInline {
                inode,
                offset,
                data: b"more",
                append: false,
                kill_set_id: true,
                is_writeback: false,
            },
            MetaRequest::AllocateInline { inode, mode: 0, offset, len: 5000 },
            MetaRequest::ProposeLayout { inode },
            MetaRequest::SetLayout { inode, layout: self.layout.clone(), blocks: 8, is_synced: true },
            MetaRequest::AcquireData { inode: chunked, write: true, is_writeback: false },
            MetaRequest::AcquireShared { inode: chunked },
            MetaRequest::CommitWrite {
                inode: chunked,
                generation: Some(self.layout.generation),
                size_at_least: 4096,
                blocks_delta: 8,
                mtime: Some(Timespec::new(1, 2)),
                atime: None,
                kill_set_id: true,
                keeps_capability: false,
                done: true,
            },
            MetaRequest::Sync(SyncScope::Names),
            MetaRequest::Sync(SyncScope::File { inode: chunked, generation: Some(self.layout.generation) }),
            MetaRequest::Lock { request, through },
            MetaRequest::LockWait {
                request: LockRequest { owner: LockOwner(2), ..request },
                through,
                ticket: 5,
            },
            MetaRequest::LockCancel { inode, ticket: 5 },
            MetaRequest::LockTest(request),
            MetaRequest::LockRelease { inode, owner: LockOwner(1), through: Some(through), is_flock: false },
            MetaRequest::LayoutShow { inode: parent },
            MetaRequest::LayoutSet { inode: parent, policy: LayoutPolicy::root_default() },
            MetaRequest::SetFileset { inode, from: FilesetId(0), fileset: FilesetId(1), slices: 2 },
            MetaRequest::RecallDone { inode, id: 1 },
            MetaRequest::WithdrawLayout { inode, generation: 1 },
            MetaRequest::MakeRoom,
            MetaRequest::SetattrRemoved { last: attr(), changes: changes() },
            MetaRequest::Slices { directory: parent },
            MetaRequest::Split { directory: parent, slices: 2, of_new: true },
        ]
    }

    /// One of each request to metadata.
    fn meta_requests(&self) -> Vec<MetaRequest<'static>> {
        [self.requests_about_names(), self.requests_about_content()].concat()
    }

    /// One of each request to a target.
    fn storage_requests(&self) -> Vec<StorageRequest> {
        let (target, chunk, chunk_bytes) = (TargetId(1), self.chunk(), CHUNK_BYTES as u32);
        let ChunkId { inode, generation, .. } = chunk;
        let (offset, len, from_index, chain) = (4000, 5000, 0, ChainId(0));
        vec![
            StorageRequest::Write { target, chunk, chain, chunk_bytes, offset, sums: Vec::new() },
            StorageRequest::Write { target, chunk, chain, chunk_bytes, offset: 0, sums: vec![1, 2] },
            StorageRequest::Read { target, chunk, chain, chunk_bytes, offset, len, want_sums: true },
            StorageRequest::Truncate { target, chunk, chain, chunk_bytes, len },
            StorageRequest::Punch { target, chunk, chain, chunk_bytes, offset, len },
            StorageRequest::Allocate { target, chunk, chain, chunk_bytes, offset, len },
            StorageRequest::DeleteGeneration { target, inode, generation, chains: OfChains::All, from_index },
            StorageRequest::Seek { target, chunk, chain, chunk_bytes, offset, data: true },
            StorageRequest::Extent { target, inode, generation, chains: OfChains::All },
            StorageRequest::Sync { target, chains: OfChains::All },
            StorageRequest::Space { target },
            StorageRequest::GiveBack { target },
            StorageRequest::Suspects {
                target,
                after: Some((inode, generation)),
                limit: 10,
                shards: ShardSet::below(64),
            },
            StorageRequest::Confirm { target, mark: 3, shards: ShardSet::below(64) },
            StorageRequest::NextChunk { target, inode, generation, chains: OfChains::All, from_index },
            StorageRequest::MoveBegin { target, chain, epoch: Epoch(5), from: Some(chunk) },
            StorageRequest::MoveSeal { target, chain },
            StorageRequest::Moves { target },
            StorageRequest::Scrub { target, from: Vec::new() },
            StorageRequest::Files { target, after: None, limit: 10, shards: ShardSet::below(64) },
        ]
    }
}

/// user::rwx, user:5:rwx, group::r-x, mask::rwx, other::r-x, as `setxattr(2)` gets it.
const ACL: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 7, 0, 5, 0, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 16,
    0, 7, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255,
];

fn changes() -> SetAttr {
    SetAttr {
        mode: Some(0o640),
        uid: Some(5),
        gid: Some(6),
        size: Some(100),
        atime: Some(TimeSet::At(Timespec::new(1, 2))),
        mtime: Some(TimeSet::Now),
        kill_set_id: false,
        has_handle: false,
    }
}

fn attr() -> ashlar_types::Attr {
    let time = Timespec::new(1_000_000, 5);
    ashlar_types::Attr {
        inode: InodeId(77),
        mode: libc::S_IFREG | 0o4755,
        nlink: 1,
        uid: 3,
        gid: 4,
        rdev: 0,
        size: 100,
        blocks: 8,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        block_size: 4096,
        fileset: ashlar_types::FilesetId(0),
    }
}

/// The name of an enum's variant.
fn variant(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

#[test]
fn ten_thousand_malformed_requests_to_metadata_are_answered() {
    let services = Services::start();
    let random = SimEntropy::new(1);
    let (mut decoded, mut done) = (0, BTreeSet::new());
    let mut sample = Sample::new(&services, 0);
    for round in 0..ROUNDS {
        if round % ROUNDS_PER_SAMPLE == 0 {
            services.meta.close_session(sample.session);
            sample = Sample::new(&services, round + 1);
        }
        let all = sample.meta_requests();
        let request = &all[random.below(all.len() as u64) as usize];
        let bytes = mutated(request, |below| random.below(below));
        let creds = if round % 3 == 0 {
            mutated(&user(), |below| random.below(below))
        } else {
            encode(&Credentials::root())
        };
        let Ok(creds) = decode::<Credentials>(&creds, "credentials") else { continue };
        let Ok(request) = decode::<MetaRequest<'_>>(&bytes, "metadata request") else { continue };
        decoded += 1;
        let kind = variant(&request);
        if let Ok(reply) = sample.call_as(&creds, request) {
            done.insert(kind);
            assert_eq!(decode::<MetaReply>(&encode(&reply), "metadata reply").as_ref(), Ok(&reply));
        }
    }
    assert!(services.meta.stopped().is_none(), "{:?}", services.meta.stopped());
    let (map, key) = (services.map().read().clone(), services.manager.identity().name_hash_key);
    audit::namespace(&services.stop(), map.shards.len() as u16, &key).unwrap();
    assert!(decoded > ROUNDS / 3 && done.len() >= 36, "{decoded} decoded; done: {done:?}");
}

fn user() -> Credentials {
    Credentials { uid: 1000, gid: 1000, ..Credentials::root() }
}

#[test]
fn ten_thousand_malformed_requests_to_storage_are_answered() {
    let services = Services::start();
    let random = SimEntropy::new(2);
    let sample = Sample::new(&services, 0);
    let (mut decoded, mut done) = (0, BTreeSet::new());
    for _ in 0..ROUNDS {
        let all = sample.storage_requests();
        let request = &all[random.below(all.len() as u64) as usize];
        let bytes = mutated(request, |below| random.below(below));
        let Ok(request) = decode::<StorageRequest>(&bytes, "storage request") else { continue };
        decoded += 1;
        let (data, mut room) = (vec![7; random.below(70_000) as usize], Vec::new());
        let payload = match &request {
            StorageRequest::Write { .. } => Payload::Write(&data),
            StorageRequest::Read { len, .. } => {
                room.resize((*len).min(READ_BYTES_MAX) as usize, 0);
                Payload::Read(&mut room)
            }
            _ if random.below(10) == 0 => Payload::Write(&data),
            _ => Payload::None,
        };
        let kind = variant(&request);
        if let Ok(reply) = services.storage.call(&request, payload) {
            done.insert(kind);
            let sent = reply.sent(true);
            assert_eq!(decode::<StorageReply>(&encode(&sent), "storage reply").as_ref(), Ok(&sent));
        }
    }
    for (target, store) in &services.stores {
        assert!(store.stopped().is_none(), "{target}: {:?}", store.stopped());
    }
    // All of them but the two that are between storage servers.
    assert!(decoded > ROUNDS / 3 && done.len() == 18, "{decoded} decoded; done: {done:?}");
}

/// Mutates each of `values` in turn; what decodes must encode and decode again as itself.
fn mutate_all<T>(values: &[T], seed: u64) -> u64
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let random = SimEntropy::new(seed);
    let mut decoded = 0;
    for round in 0..ROUNDS as usize {
        let bytes = mutated(&values[round % values.len()], |below| random.below(below));
        if let Ok(value) = decode::<T>(&bytes, "message") {
            decoded += 1;
            assert_eq!(decode::<T>(&encode(&value), "message").unwrap(), value);
        }
    }
    decoded
}

#[test]
fn ten_thousand_malformed_replies_and_events_of_each_kind_are_answered() {
    let layout = FileLayout {
        generation: 1,
        chunk_bytes: 65_536,
        chains: [ChainId(0), ChainId(1)].into_iter().collect(),
    };
    let leases = LeaseSet(3);
    let data = DataGrant::Inline { body: Some(Bytes::from_static(b"body")) };
    let chunks = DataGrant::Chunks { layout: layout.clone() };
    let open = OpenReply {
        attr: attr(),
        data: data.clone(),
        inline_bytes: 16_384,
        leases,
        recall_mark: 4,
        is_shared: false,
        kept_read: true,
        durability: Durability::Async,
        proof: None,
    };
    let reclaimed = Reclaimed { leases, size: 1 << 40, generation: Some(3) };
    let entry = DirEntry {
        cookie: 5,
        inode: InodeId(6),
        file_type: FileType::Regular,
        name: Bytes::from_static(b"name"),
        attr: Some(attr()),
        leases,
    };
    let replies = [
        MetaReply::Done,
        MetaReply::Attr { attr: attr(), leases },
        MetaReply::Removed { last: Some(attr()), leases },
        MetaReply::NoEntry { leases },
        MetaReply::Opened { open, created: true },
        MetaReply::Granted { attr: attr(), data: chunks, leases, recall_mark: 9 },
        MetaReply::Bytes(Bytes::from_static(b"bytes")),
        MetaReply::Entries { entries: vec![entry.clone(), entry], is_end: true },
        MetaReply::WrittenInline { attr: attr(), offset: 4 },
        MetaReply::NeedsChunks,
        MetaReply::Layout { layout: layout.clone(), is_bound: true },
        MetaReply::Policy { policy: LayoutPolicy::root_default(), layout: Some(layout) },
        MetaReply::StatFs(StatFs::default()),
        MetaReply::LockQueued,
        MetaReply::LockConflict { conflict: Some((LockKind::Read, LockRange { start: 0, end: 9 }, 3)) },
        MetaReply::Reclaimed { files: vec![Ok(reclaimed), Err(Errno::ESTALE)] },
    ];
    assert!(mutate_all(&replies, 3) > ROUNDS / 3);
    let answers = [
        StorageReply::Written(ChunkWritten { blocks_delta: -8, ..ChunkWritten::default() }),
        StorageReply::WrittenAt(ChunkWritten::default(), LossMark(7)),
        StorageReply::Synced([(ChainId(1), LossMark(7))].into_iter().collect()),
        StorageReply::Read { sums: vec![1, 2, 3] },
        StorageReply::Deleted { blocks: 8, is_done: false, may_be_second: false },
        StorageReply::Found(Some(4096)),
    ];
    assert!(mutate_all(&answers, 4) > ROUNDS / 3);
    let recall = Recall { id: 1, inode: InodeId(2), leases, flush_only: true };
    let events = [
        SessionEvent::Recall(recall),
        SessionEvent::LockDone { ticket: 1, outcome: Err(Errno::EINTR) },
        SessionEvent::LockDone { ticket: 1, outcome: Ok(()) },
        SessionEvent::Evicted { session: SessionId(3) },
        SessionEvent::Expired,
        SessionEvent::Reclaim { server: NodeId(2), incarnation: 7 },
    ];
    assert!(mutate_all(&events, 5) > ROUNDS / 3);
}

#[test]
fn ten_thousand_malformed_calls_to_storage_servers_are_answered() {
    let capability = Capability {
        cluster: ClusterId([1; 16]),
        granter: NodeId(2),
        session: SessionId(3),
        owner: SessionOwner { node: NodeId(4), instance: [4; 16] },
        inode: InodeId(5),
        generation: 6,
        rights: Rights::READ,
        term_s: 300,
    };
    let seal = Seal { server: NodeId(7), standing: 1 << 60, since_ms: 9, key_epoch: 1, mac: [7; 32] };
    let request = StorageRequest::Sync { target: TargetId(1), chains: OfChains::All };
    let sealed = Box::new(SealedCapability { capability, seal });
    let fences = vec![SessionId(1), SessionId(u64::MAX)];
    let calls = [
        StorageCall::Call { under: Under::Role, request: request.clone() },
        StorageCall::Call { under: Under::Session(SessionId(9)), request: request.clone() },
        StorageCall::Call { under: Under::Capability(sealed), request },
        StorageCall::Attend(Attend { echo: Some((1, 2)), fences: fences.clone() }),
        StorageCall::TakeTarget(TargetPlace {
            dir: "/data".into(),
            pool: "fast".into(),
            listen: vec!["127.0.0.1:7402".parse().unwrap()],
            numa: Some(1),
        }),
    ];
    assert!(mutate_all(&calls, 6) > ROUNDS / 3);
    let attended = [Attended { standing: 1, now_ms: 2, epochs: (1, 2), fenced: fences }];
    assert!(mutate_all(&attended, 7) > ROUNDS / 3);
    let granted = GrantedCapability { capability, seals: vec![seal, seal] };
    let proof = OpenProof { write: true, mac: [9; 32] };
    let answers = [
        MetaAnswer::Granted(MetaReply::Done, granted.clone()),
        MetaAnswer::Opened(MetaReply::Done, proof, Some(granted.clone())),
        MetaAnswer::Opened(MetaReply::Done, proof, None),
        MetaAnswer::Capability(granted),
    ];
    assert!(mutate_all(&answers, 8) > ROUNDS / 3);
}
