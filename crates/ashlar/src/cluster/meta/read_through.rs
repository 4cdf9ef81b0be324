//! Reads all of each copy of metadata here, slowly and again and again. What nobody asks for could be damaged for years, and be found when no other copy is left.

use super::copy::Copy;
use ashlar_kv::KvError;
use ashlar_types::NodeId;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two reads: a copy of a hundred million pairs takes an hour or two, and hardly anything of a processor.
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two looks whether something is due.
const LOOK: Duration = Duration::from_secs(1);
/// The first time comes so long after a copy was begun, or sooner: a server that is started often is to be read, too.
const FIRST_MAX: Duration = Duration::from_secs(600);

/// How far one copy was read.
struct Pass {
    /// When it is read next.
    due: Instant,
    /// From which key on.
    from: Vec<u8>,
    begun: Option<Instant>,
}

/// See the module.
pub struct Passes {
    /// Zero: never.
    every: Duration,
    // LIMIT: one for each copy here.
    of: FxHashMap<NodeId, Pass>,
}

impl Passes {
    /// All copies are read once in `every`, if that is not zero.
    pub fn new(every: Duration) -> Passes {
        Passes { every, of: FxHashMap::default() }
    }

    /// Reads some of each of `copies` that is due; tells after what time it is to be called again.
    pub fn turn(&mut self, copies: &[(NodeId, Arc<Copy>)]) -> Duration {
        if self.every.is_zero() {
            return LOOK;
        }
        self.of.retain(|server, _| copies.iter().any(|(running, _)| running == server));
        let mut pause = LOOK;
        for (server, copy) in copies {
            let first = Instant::now() + self.every.min(FIRST_MAX);
            let pass =
                self.of.entry(*server).or_insert_with(|| Pass { due: first, from: Vec::new(), begun: None });
            if Instant::now() < pass.due {
                continue;
            }
            let begun = *pass.begun.get_or_insert_with(Instant::now);
            let read = copy.replica().lane().read_through(&pass.from);
            if let Ok(Some(next)) = read {
                pass.from = next.to_vec();
                pause = PAUSE;
                continue;
            }
            match read {
                Err(error) => {
                    tracing::warn!(%error, %server, "a copy of metadata cannot be read whole");
                    if let KvError::Corrupt { what } = &error {
                        copy.report_damage(what);
                    }
                }
                Ok(_) => {
                    tracing::info!(%server, seconds = begun.elapsed().as_secs(), "all of a copy of metadata was read");
                }
            }
            *pass = Pass { due: Instant::now() + self.every, from: Vec::new(), begun: None };
        }
        pause
    }
}
