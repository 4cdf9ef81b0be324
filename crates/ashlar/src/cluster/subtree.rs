//! The directory that is all a machine sees: found by its path, and made a fileset of its own (`docs/adr/0020-a-subtree-is-a-fileset.md`).

use super::Member;
use anyhow::{Context, Result, bail};
use ashlar_rpc::remote::{Patience, RemoteMeta};
use ashlar_rpc::{Caller, MetaCalls, SessionEvents};
use ashlar_types::message::{
    DirEntry, ManagerReply, ManagerRequest, MetaReply, MetaRequest, SessionEvent, SplitDirectory,
};
use ashlar_types::policy::Subtree;
use ashlar_types::{
    Attr, ClusterMap, Coherence, Cookie, Credentials, Errno, FileType, FilesetId, InodeId, Name, NameHash,
    OpId, Role, SessionId,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// LIMIT: how long metadata servers are waited for, each call.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Bytes of names and attributes that are asked for at once.
const PAGE_BYTES: u32 = 64 << 10;
/// LIMIT: how often a tree is gone through in which names are moved meanwhile.
const PASSES_MAX: usize = 32;
/// Cookie of the entry `..`, behind which are those with names.
const AFTER_DOTS: u64 = 2;
/// How often is told how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Nobody who can be asked for anything: a session that is close-to-open holds no lease on what it only looks at.
struct Deaf;

impl SessionEvents for Deaf {
    fn deliver(&self, _: SessionEvent) {}
}

/// Metadata, as an administrator uses it.
struct Tree {
    meta: RemoteMeta,
    session: SessionId,
    calls: AtomicU64,
}

impl Tree {
    fn open(member: &Member) -> Result<Tree> {
        if member.map().read().listening(Role::Meta).next().is_none() {
            bail!("no metadata server has been started yet, so there is no directory to choose");
        }
        let meta = RemoteMeta::new(member.routes(), member.env.clone(), Patience::new(ANSWER_MAX));
        let meta = meta.with_coherence(Coherence::CloseToOpen);
        let grant = meta
            .open_session(Arc::new(Deaf))
            .map_err(|errno| anyhow::anyhow!("the metadata server gives no session: {errno}"))?;
        Ok(Tree { meta, session: grant.session, calls: AtomicU64::new(0) })
    }

    fn call(&self, request: MetaRequest<'_>) -> Result<MetaReply, Errno> {
        let sequence = self.calls.fetch_add(1, Relaxed) + 1;
        let creds = Credentials::root();
        self.meta.call(Caller::new(OpId { session: self.session, sequence }, &creds), request)
    }

    fn attr(&self, request: MetaRequest<'_>) -> Result<Option<Attr>, Errno> {
        match self.call(request)? {
            MetaReply::Attr { attr, .. } => Ok(Some(attr)),
            MetaReply::NoEntry { .. } => Ok(None),
            _ => Err(Errno::EPROTO),
        }
    }

    /// The slices of a directory, none if it is not split.
    fn split(&self, directory: InodeId) -> Result<SplitDirectory, Errno> {
        match self.call(MetaRequest::Slices { directory })? {
            MetaReply::Slices(split) => Ok(split),
            _ => Err(Errno::EPROTO),
        }
    }

    fn lookup(&self, directory: &Attr, name: Name<'_>) -> Result<Option<Attr>, Errno> {
        let mut parent = directory.inode;
        if directory.slices() > 0 {
            let split = self.split(parent)?;
            let hash = NameHash::of(name, &split.hash_key);
            parent = split.slice_of(hash).unwrap_or(parent);
        }
        match self.attr(MetaRequest::Lookup { parent, name }) {
            // It is being split, or has been since.
            Err(Errno::EREMOTE) => {
                let split = self.split(directory.inode)?;
                let parent = split.slice_of(NameHash::of(name, &split.hash_key)).unwrap_or(directory.inode);
                self.attr(MetaRequest::Lookup { parent, name })
            }
            told => told,
        }
    }

    /// All of a directory, but for itself and the one above.
    fn list(&self, directory: InodeId) -> Result<Vec<DirEntry>, Errno> {
        for _ in 0..PASSES_MAX {
            let split = self.split(directory)?;
            let mut all = Vec::new();
            for slice in &split.slices {
                all.append(&mut self.list_one(*slice, AFTER_DOTS)?);
            }
            if split.slices.is_empty() || !split.is_whole() {
                // While it is being split, the rest is behind.
                let after = Cookie::before(NameHash(split.border)).0.max(AFTER_DOTS);
                match self.list_one(directory, after) {
                    // Some of them have gone to slices meanwhile.
                    Err(Errno::EREMOTE) => continue,
                    rest => all.append(&mut rest?),
                }
            }
            return Ok(all);
        }
        Err(Errno::EAGAIN)
    }

    /// Entries behind a cookie, of a directory or of a slice.
    fn list_one(&self, directory: InodeId, mut after: u64) -> Result<Vec<DirEntry>, Errno> {
        let mut all = Vec::new();
        loop {
            // LIMIT: of entries of a directory in memory, with their attributes: about 300 bytes each.
            let request =
                MetaRequest::Readdir { directory, after, bytes_max: PAGE_BYTES, with_attributes: true };
            let MetaReply::Entries { entries, is_end } = self.call(request)? else {
                return Err(Errno::EPROTO);
            };
            after = entries.last().map_or(after, |entry| entry.cookie);
            let is_over = is_end || entries.is_empty();
            all.extend(entries.into_iter().filter(|entry| !matches!(&entry.name[..], b"." | b"..")));
            if is_over {
                return Ok(all);
            }
        }
    }

    /// The directory at `path`, and the fileset of the one above it.
    fn find(&self, path: &str) -> Result<(Attr, FilesetId)> {
        let shown = path.escape_debug();
        let failed = |errno: Errno| format!("{shown}: {errno}");
        let mut at = self
            .attr(MetaRequest::Getattr { inode: InodeId::ROOT })
            .map_err(|errno| anyhow::anyhow!(failed(errno)))?
            .context("the file system has no root directory")?;
        let mut above = at.fileset;
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            let Ok(name) = Name::new(part.as_bytes()) else {
                bail!("{shown}: `{}` cannot be the name of a directory", part.escape_debug());
            };
            let found = match self.lookup(&at, name) {
                Err(Errno::ENOENT | Errno::ESTALE) => None,
                other => other.map_err(|errno| anyhow::anyhow!(failed(errno)))?,
            };
            let Some(found) = found else {
                bail!(
                    "there is no {shown} in the file system: `{}` is missing; make it first",
                    part.escape_debug()
                );
            };
            match FileType::from_mode(found.mode) {
                Some(FileType::Directory) => {}
                Some(FileType::Symlink) => bail!(
                    "{shown}: `{}` is a symbolic link; say the path of the directory itself",
                    part.escape_debug()
                ),
                _ => bail!("{shown}: `{}` is not a directory", part.escape_debug()),
            }
            above = at.fileset;
            at = found;
        }
        Ok((at, above))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.meta.close_session(self.session);
    }
}

/// The subtree at `path`, a path from the root of the file system; it is a fileset when this returns. `None`: that is the whole file system.
///
/// # Errors
/// When there is no such directory, or it could not be made a fileset; said again it goes on.
pub fn choose(member: &Member, path: &str) -> Result<Option<Subtree>> {
    let tree = Tree::open(member)?;
    let (found, above) = tree.find(path)?;
    if found.inode == InodeId::ROOT {
        return Ok(None);
    }
    let ManagerReply::Fileset(fileset, epoch) =
        member.ask(&ManagerRequest::NewFileset { root: found.inode, parent: above })?
    else {
        bail!("the manager gave an answer of the wrong kind");
    };
    member.wait_for_epoch(epoch)?;
    let map = member.map().read().clone();
    // One that was made before another one around it knows no better yet.
    if map.fileset(fileset).is_some_and(|known| known.parent != above) {
        member.ask(&ManagerRequest::EncloseFileset { fileset, parent: above })?;
    }
    let subtree = Subtree { path: path.to_owned(), root: found.inode, fileset };
    if !is_whole(&map, fileset) {
        Walk {
            tree: &tree,
            member,
            above,
            fileset,
            told: Instant::now(),
            seen: 0,
            outside: BTreeSet::new(),
            foreign: BTreeSet::new(),
        }
        .go_through(&subtree)?;
    }
    Ok(Some(subtree))
}

/// Whether a machine is shown the fileset already: it was whole before that, and stays so.
fn is_whole(map: &ClusterMap, fileset: FilesetId) -> bool {
    let shows = |subtree: &Option<Subtree>| subtree.as_ref().is_some_and(|shown| shown.fileset == fileset);
    map.nodes.iter().any(|node| shows(&node.policy.subtree))
}

/// Has everything below a directory become part of its fileset.
///
/// The directory goes first, and each directory before what is in it is listed. From then on what is made in it is of the fileset, and what is in it
/// does not get out by a rename. What is moved inside meanwhile may be missed, so it is gone through until nothing was found to do.
struct Walk<'a> {
    tree: &'a Tree,
    member: &'a Member,
    /// The fileset of the directory above: what is to be done is of it, or of one that it is inside of.
    above: FilesetId,
    fileset: FilesetId,
    told: Instant,
    seen: u64,
    /// Files with more than one name: some may be outside.
    // LIMIT: as such files of the tree, 8 bytes each and a little more.
    outside: BTreeSet<InodeId>,
    /// Files of another subtree.
    foreign: BTreeSet<InodeId>,
}

impl Walk<'_> {
    fn go_through(&mut self, subtree: &Subtree) -> Result<()> {
        let shown = subtree.path.escape_debug().to_string();
        for _ in 0..PASSES_MAX {
            let root = self.tree.attr(MetaRequest::Getattr { inode: subtree.root });
            let Ok(Some(root)) = root else { bail!("{shown} was removed meanwhile") };
            let mut changed = self.enclose(&root).map_err(|errno| anyhow::anyhow!("{shown}: {errno}"))?.0;
            // LIMIT: directories that were seen and not listed yet; at most those of the tree.
            let mut left = vec![subtree.root];
            while let Some(directory) = left.pop() {
                changed += self.enclose_entries(directory, &mut left).with_context(|| shown.clone())?;
            }
            if changed == 0 {
                self.warn_of_other_names(&shown);
                return Ok(());
            }
        }
        bail!("{shown}: too much was moved in it meanwhile; say it again when there is less to do")
    }

    fn enclose_entries(&mut self, directory: InodeId, left: &mut Vec<InodeId>) -> Result<u64> {
        let entries = match self.tree.list(directory) {
            Ok(entries) => entries,
            // Removed meanwhile.
            Err(Errno::ESTALE | Errno::ENOENT) => return Ok(0),
            Err(errno) => bail!("{directory}: {errno}"),
        };
        let mut changed = 0;
        for entry in entries {
            self.tell();
            let attr = match entry.attr {
                Some(attr) => Ok(Some(attr)),
                None => self.tree.attr(MetaRequest::Getattr { inode: entry.inode }),
            };
            let attr = match attr {
                Ok(Some(attr)) => attr,
                Ok(None) | Err(Errno::ESTALE) => continue,
                Err(errno) => bail!("{}: {errno}", String::from_utf8_lossy(&entry.name)),
            };
            let (some, is_inside) = match self.enclose(&attr) {
                Ok(done) => done,
                Err(Errno::ESTALE) => continue,
                Err(errno) => bail!("{}: {errno}", String::from_utf8_lossy(&entry.name)),
            };
            changed += some;
            if is_inside && FileType::from_mode(attr.mode) == Some(FileType::Directory) {
                left.push(attr.inode);
            }
        }
        Ok(changed)
    }

    /// Takes one inode into the fileset; how many were not in it, and whether it is in it now. What is a fileset already is enclosed as a whole.
    fn enclose(&mut self, attr: &Attr) -> Result<(u64, bool), Errno> {
        let Attr { inode, fileset, .. } = *attr;
        let is_directory = FileType::from_mode(attr.mode) == Some(FileType::Directory);
        if !is_directory && attr.nlink > 1 {
            self.outside.insert(inode);
        }
        if fileset == self.fileset {
            return Ok((0, true));
        }
        let map = self.member.map().read().clone();
        // Another administrator may be making a subtree around this one.
        if map.is_inside(self.above, fileset) {
            return match self.take(inode, fileset, attr.slices() > 0) {
                Ok(()) => Ok((1, true)),
                // Or has taken it meanwhile.
                Err(Errno::EXDEV) => Ok((1, false)),
                Err(errno) => Err(errno),
            };
        }
        let inner = match map.fileset(fileset) {
            Some(inner) if inner.root == inode && map.is_inside(self.above, inner.parent) => inner,
            Some(inner) if inner.root == inode => return Ok((0, false)),
            _ => {
                self.foreign.insert(inode);
                return Ok((0, false));
            }
        };
        let request = ManagerRequest::EncloseFileset { fileset: inner.id, parent: self.fileset };
        match self.member.ask(&request) {
            Ok(_) => Ok((0, false)),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), %inode, "a subtree inside could not be enclosed");
                Err(Errno::EIO)
            }
        }
    }

    /// Takes one inode out of the fileset `from`.
    fn take(&self, inode: InodeId, from: FilesetId, is_split: bool) -> Result<(), Errno> {
        let take = |inode, slices| {
            let request = MetaRequest::SetFileset { inode, from, fileset: self.fileset, slices };
            self.tree.call(request).map(drop)
        };
        // The slices of a directory first: one whose turn did not come is found with the directory the next time.
        let slices = if is_split { self.tree.split(inode)?.slices } else { Vec::new() };
        slices.iter().try_for_each(|slice| take(*slice, 0))?;
        match take(inode, slices.len() as u16) {
            // It has been split since it was looked at, which happens once.
            Err(Errno::EAGAIN) if !is_split => self.take(inode, from, true),
            taken => taken,
        }
    }

    fn tell(&mut self) {
        self.seen += 1;
        if self.told.elapsed() > TELL_EVERY {
            self.told = Instant::now();
            eprintln!("{} files and directories looked at", self.seen);
        }
    }

    fn warn_of_other_names(&self, shown: &str) {
        if !self.outside.is_empty() {
            eprintln!(
                "{} files in {shown} have several names. Whoever sees {shown} alone can use them for as long as they are there, also where such a name is outside",
                self.outside.len()
            );
        }
        if !self.foreign.is_empty() {
            eprintln!(
                "{} files in {shown} have names in another subtree, too, of which they are since before: whoever sees {shown} alone does not see them",
                self.foreign.len()
            );
        }
    }
}
