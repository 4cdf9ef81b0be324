//! What a metadata directory says of itself: which metadata it is, and in which start it was served last.

use super::claim::{self, claim, place_of};
use super::member::Member;
use super::older_copy::OlderCopy;
use crate::cli::CopyArgs;
use anyhow::{Context, Result, bail};
use ashlar_env::{Disk, OpenMode, replace_file};
use ashlar_rpc::net::NetError;
use ashlar_types::codec::crc32c;
use ashlar_types::message::ManagerRequest;
use ashlar_types::{Holding, Role, Start};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// File that says which metadata this is: magic `ASHLMTA2`, uuid 16 bytes, number and tag of the last start u64 little-endian each, CRC-32C u32 little-endian of
/// all of that behind the magic. Earlier: magic `ASHLMTA1`, uuid, CRC-32C.
const UUID_FILE: &str = "metadata";
const MAGIC: &[u8; 8] = b"ASHLMTA2";
const MAGIC_1: &[u8; 8] = b"ASHLMTA1";
const BYTES: usize = 44;
const BYTES_1: usize = 28;
/// What a new directory is to be known by, until it is: as above.
const DRAWN_FILE: &str = "metadata.drawn";

/// What the file says.
type Said = ([u8; 16], Start);

/// Which metadata is in `disk`, the directory `path`, if it says so.
///
/// # Errors
/// When that cannot be read or is damaged.
pub fn read_uuid(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<[u8; 16]>> {
    Ok(read(disk, path, UUID_FILE)?.map(|(_, (uuid, _))| uuid))
}

/// Says durably which metadata is in `disk`, the directory `path`, which was not served in any start yet.
///
/// # Errors
/// When it cannot be written.
pub fn write_uuid(disk: &Arc<dyn Disk>, path: &Path, uuid: [u8; 16]) -> Result<()> {
    write(disk, path, UUID_FILE, &(uuid, Start::default()))
}

fn write(disk: &Arc<dyn Disk>, path: &Path, file: &str, said: &Said) -> Result<()> {
    replace_file(&**disk, file, &encode(said))
        .with_context(|| format!("cannot write {}", path.join(file).display()))
}

fn encode((uuid, start): &Said) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(uuid);
    bytes.extend_from_slice(&start.number.to_le_bytes());
    bytes.extend_from_slice(&start.tag.to_le_bytes());
    let crc = crc32c(0, &bytes[MAGIC.len()..]);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Said> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    let known = [(MAGIC, BYTES), (MAGIC_1, BYTES_1)];
    let (magic, _) = known.iter().find(|(magic, len)| bytes.len() == *len && bytes.starts_with(*magic))?;
    let body = body.strip_prefix(magic.as_slice())?;
    if crc32c(0, body).to_le_bytes() != *crc {
        return None;
    }
    let (uuid, rest) = body.split_first_chunk::<16>()?;
    let number = |at: usize| rest.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    // The earlier one has no start.
    let start = number(0).zip(number(8)).map(|(number, tag)| Start { number, tag });
    Some((*uuid, start.unwrap_or_default()))
}

/// What `file` says, and whether it can be changed in place.
fn read(disk: &Arc<dyn Disk>, path: &Path, file: &str) -> Result<Option<(bool, Said)>> {
    let shown = path.join(file);
    let file = match disk.open(file, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot open {}", shown.display())),
    };
    let mut bytes = [0; BYTES + 1];
    let got = file.read_at(0, &mut bytes).with_context(|| format!("cannot read {}", shown.display()))?;
    match decode(&bytes[..got]) {
        Some(said) => Ok(Some((got == BYTES, said))),
        None => bail!("{} is damaged; restore the metadata from a backup", shown.display()),
    }
}

/// Notes durably that the directory is served in a start. In place, so that a full disk does not keep the metadata closed: all of it is in the first 512 bytes
/// and changes by one write, so no power cut tears it.
fn note_start(disk: &Arc<dyn Disk>, path: &Path, is_in_place: bool, said: &Said) -> Result<()> {
    if !is_in_place {
        return write(disk, path, UUID_FILE, said);
    }
    let store = || {
        let file = disk.open(UUID_FILE, OpenMode::ReadWrite)?;
        file.write_at(0, &encode(said))?;
        file.sync_data()
    };
    store().with_context(|| format!("cannot write {}", path.join(UUID_FILE).display()))
}

/// Has the metadata in `disk`, the directory `path`, which is locked, begin its next start, and note it; an empty one becomes that of a new server, if the managers say so.
///
/// # Errors
/// When it is not to be served, with the reason and the way out.
pub fn begin(
    member: &Member,
    (disk, path): (&Arc<dyn Disk>, &Path),
    copies: CopyArgs,
    is_told: &AtomicBool,
) -> Result<Holding> {
    let (is_in_place, (uuid, start)) = match read(disk, path, UUID_FILE)? {
        Some(said) => said,
        None => (true, (draw(member, disk, path)?, Start::default())),
    };
    let mut own = Holding { uuid, start, path: path.display().to_string(), place: place_of(path) };
    let claimed = claim(member, (Role::Meta, &own), (copies, false), is_told)?;
    let claimed = claimed.context("no manager tells whether the metadata may be served")?;
    if claimed.is_older {
        eprintln!(
            "ashlar: the metadata at {} is an older copy: what has changed since is gone; check all metadata with `ashlar fsck` afterwards",
            own.path
        );
        // ORDER: before anything says that it is the newest one.
        OlderCopy::store(disk, false)?;
    }
    own.start = claimed.start;
    note_start(disk, path, is_in_place, &(uuid, own.start))?;
    Ok(own)
}

/// Says that the metadata is served in the start of [`begin`]: its log could be opened. A copy that is torn takes the directory over from nobody.
///
/// # Errors
/// When it is not to be served any more.
pub fn confirm(member: &Member, own: &Holding) -> Result<()> {
    // ORDER: managers hear of a start when the directory says it, durably. Heard before, it would lock a server out that ends in between.
    claim::confirm(member, Role::Meta, std::slice::from_ref(own), true)
}

fn draw(member: &Member, disk: &Arc<dyn Disk>, path: &Path) -> Result<[u8; 16]> {
    let others = disk.list("").with_context(|| format!("cannot list {}", path.display()))?;
    let is_own = |name: &str| {
        let name = name.strip_suffix(".new").unwrap_or(name);
        [crate::node::LOCK_FILE, UUID_FILE, DRAWN_FILE].contains(&name)
    };
    if let Some(other) = others.iter().find(|name| !is_own(name)) {
        bail!(
            "{} is not empty, it has {other}, and it is not the metadata of a file system of servers; `ashlar promote` makes that of a single machine one",
            path.display()
        );
    }
    let uuid = match read(disk, path, DRAWN_FILE)? {
        // A start that was cut short: the managers may know it.
        Some((_, (uuid, _))) => uuid,
        None => {
            let mut uuid = [0; 16];
            member.env.entropy.fill(&mut uuid);
            write(disk, path, DRAWN_FILE, &(uuid, Start::default()))?;
            uuid
        }
    };
    // ORDER: the manager first. If it knows of other metadata, nothing is made here.
    let asked = member.ask(&ManagerRequest::MetaIdentity { uuid, path: path.display().to_string() });
    if let Err(error) = asked {
        // Who is refused leaves nothing behind; if it cannot be removed it says nothing that anybody goes by. Without an answer managers may know it.
        if matches!(error.downcast_ref(), Some(NetError::Refused(_))) {
            let _ = disk.remove(DRAWN_FILE);
        }
        return Err(error);
    }
    write_uuid(disk, path, uuid)?;
    disk.remove(DRAWN_FILE).with_context(|| format!("cannot remove {}", path.join(DRAWN_FILE).display()))?;
    Ok(uuid)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn what_a_directory_says_is_read_again_and_a_changed_byte_is_damage() {
        let said = ([7; 16], Start { number: 5, tag: 6 });
        let bytes = encode(&said);
        assert_eq!((bytes.len(), decode(&bytes)), (BYTES, Some(said)));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
        }
        (0..bytes.len()).for_each(|len| assert_eq!(decode(&bytes[..len]), None));
        // As it was before starts were counted.
        let earlier = [MAGIC_1.as_slice(), &[7; 16], &crc32c(0, &[7; 16]).to_le_bytes()].concat();
        assert_eq!(decode(&earlier), Some(([7; 16], Start::default())));
    }
}
