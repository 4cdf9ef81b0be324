//! The operations, and what each of them finds.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::suite::cluster::lab::Lab;

/// Bytes of a chunk of a new file.
const CHUNK_BYTES: usize = 1 << 20;
/// Files of which the content is in chunks, and directories that are listed: they are large.
const LARGE: usize = 8;
const LISTED: usize = 5;
const LISTED_FILES: usize = 1_000;

/// The directories of a round.
#[derive(Debug)]
pub(super) struct Place {
    /// Through the mount that is measured.
    here: PathBuf,
    /// Through the other one, which has made what is there.
    there: PathBuf,
    repetitions: usize,
}

type Step<T> = fn(&Place, usize) -> io::Result<T>;

/// See the module.
pub(super) struct Operation {
    pub(super) what: &'static str,
    /// How often it can be done in a round, if not as often as wanted.
    most: Option<usize>,
    /// Gets ready for the `usize`th.
    pub(super) ready: Step<()>,
    /// Does it; how long it took.
    pub(super) run: Step<Duration>,
    /// Whether the file system has a target for it.
    pub(super) is_target: bool,
}

impl Place {
    /// Makes what a round finds, through the second mount, so that the first one knows nothing of it.
    pub(super) fn prepare(lab: &Lab, round: u32, repetitions: usize) -> anyhow::Result<Self> {
        let mounts = lab.mounts();
        let [here, there] = &mounts[..] else { anyhow::bail!("a lab without two clients") };
        let name = format!("round{round}");
        let place = Self { here: here.join(&name), there: there.join(&name), repetitions };
        place.make().with_context(|| format!("make files in {}", place.there.display()))?;
        Ok(place)
    }

    fn make(&self) -> io::Result<()> {
        for dir in ["cold", "inline", "chunks", "listed", "made"] {
            fs::create_dir_all(self.there.join(dir))?;
        }
        for at in 0..self.repetitions {
            File::create(self.there.join(format!("cold/f{at}")))?;
            fs::write(self.there.join(format!("inline/f{at}")), [7; 4096])?;
        }
        for at in 0..LARGE {
            fs::write(self.there.join(format!("chunks/f{at}")), vec![9; 4 * CHUNK_BYTES])?;
        }
        for at in 0..LISTED {
            let dir = self.there.join(format!("listed/d{at}"));
            fs::create_dir(&dir)?;
            (0..LISTED_FILES).try_for_each(|file| File::create(dir.join(format!("f{file}"))).map(drop))?;
        }
        // On the way to everything.
        fs::metadata(self.here.join("made"))?;
        fs::write(self.warm_file(), [1; 4096])
    }

    /// Removes it.
    pub(super) fn clear(&self) -> anyhow::Result<()> {
        fs::remove_dir_all(&self.there).with_context(|| format!("remove {}", self.there.display()))
    }

    /// A file of which the mount has all that there is to know.
    pub(super) fn warm_file(&self) -> PathBuf {
        self.here.join("warm")
    }

    /// How often an operation is done.
    pub(super) fn count(&self, operation: &Operation) -> usize {
        operation.most.map_or(self.repetitions, |most| most.min(self.repetitions))
    }

    fn path(&self, what: &str, at: usize) -> PathBuf {
        self.here.join(format!("{what}{at}"))
    }
}

fn nothing(_: &Place, _: usize) -> io::Result<()> {
    Ok(())
}

/// The kernel knows that there is nothing.
fn absent(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

fn timed<T>(run: impl FnOnce() -> io::Result<T>) -> io::Result<Duration> {
    let begun = Instant::now();
    run()?;
    Ok(begun.elapsed())
}

fn read_whole(path: &Path, bytes: usize) -> io::Result<Duration> {
    let mut buffer = vec![0; bytes];
    timed(|| File::open(path)?.read_exact_at(&mut buffer, 0))
}

fn of(what: &'static str, ready: Step<()>, run: Step<Duration>) -> Operation {
    Operation { what, most: None, ready, run, is_target: false }
}

/// All of them, in the order in which they are measured.
pub(super) static OPERATIONS: std::sync::LazyLock<Vec<Operation>> = std::sync::LazyLock::new(|| {
    let rename = |place: &Place, at: usize| {
        let (from, to) = (place.path("made/i", at), place.path("made/renamed", at));
        timed(|| fs::rename(from, to))
    };
    vec![
        of("stat, cold", nothing, |place, at| timed(|| fs::metadata(place.path("cold/f", at)))),
        of(
            "stat, under a lease",
            |place, at| fs::metadata(place.path("cold/f", at)).map(drop),
            |place, at| timed(|| fs::metadata(place.path("cold/f", at))),
        ),
        of("create, close (empty), cold", nothing, |place, at| {
            timed(|| File::create(place.path("made/c", at)))
        }),
        Operation {
            is_target: true,
            ..of(
                "create, close (empty), name known to be absent",
                |place, at| absent(&place.path("made/e", at)),
                |place, at| timed(|| File::create(place.path("made/e", at))),
            )
        },
        of(
            "create, write 4 KiB, close, name known to be absent",
            |place, at| absent(&place.path("made/i", at)),
            |place, at| timed(|| fs::write(place.path("made/i", at), [5; 4096])),
        ),
        of(
            "open, read, close, 4 KiB with the inode",
            |place, at| fs::metadata(place.path("inline/f", at)).map(drop),
            |place, at| read_whole(&place.path("inline/f", at), 4096),
        ),
        Operation {
            most: Some(LARGE),
            ..of(
                "open, read, close, 4 chunks of 1 MiB",
                |place, at| fs::metadata(place.path("chunks/f", at)).map(drop),
                |place, at| read_whole(&place.path("chunks/f", at), 4 * CHUNK_BYTES),
            )
        },
        Operation {
            most: Some(LISTED),
            ..of(
                "list 1,000 entries with attributes",
                |place, at| fs::metadata(place.path("listed/d", at)).map(drop),
                |place, at| {
                    let list = || {
                        fs::read_dir(place.path("listed/d", at))?
                            .try_for_each(|entry| entry?.metadata().map(drop))
                    };
                    timed(list)
                },
            )
        },
        // Of the new name the kernel looks for itself, whatever it knows.
        of("mkdir", nothing, |place, at| timed(|| fs::create_dir(place.path("made/d", at)))),
        of("rename in a directory", nothing, rename),
        of("unlink", nothing, |place, at| timed(|| fs::remove_file(place.path("made/e", at)))),
        Operation {
            most: Some(100),
            ..of("open, write 4 KiB in place, fsync, close", nothing, |place, at| {
                let path = place.path("made/renamed", at);
                timed(|| {
                    let file = OpenOptions::new().write(true).open(path)?;
                    file.write_all_at(&[6; 4096], 0)?;
                    file.sync_all()
                })
            })
        },
    ]
});
