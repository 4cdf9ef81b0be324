//! What a session sees of the changes of others, and when ([guide](../../../docs/guides/coherence.md)).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Coherence {
    /// Whatever begins after a change of anybody's has ended sees it. What is cached is held under leases, which are recalled.
    #[default]
    Strict,
    /// An open sees what was closed before it; else what others change may be seen late by [`Coherence::LATE_MAX`]. Nobody is recalled for
    /// what such a session is told, and it is not recalled itself.
    CloseToOpen,
}

impl Coherence {
    /// How late a session that is [`Coherence::CloseToOpen`] may be, but for the time that calls take: what was told to it may be as old as
    /// [`Coherence::ASKED_AFTER`], and is kept for [`Coherence::KEPT_MAX`].
    pub const LATE_MAX: Duration = Duration::from_secs(3);
    /// For how long such a session keeps what it was told of a file.
    pub const KEPT_MAX: Duration = Duration::from_secs(2);
    /// How old the last report of a writer may be before he is asked for another one on behalf of such a session.
    pub const ASKED_AFTER: Duration = Duration::from_secs(1);

    /// Its name, as it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Coherence::Strict => "strict",
            Coherence::CloseToOpen => "close-to-open",
        }
    }
}

impl fmt::Display for Coherence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Coherence {
    type Err = String;

    fn from_str(text: &str) -> Result<Coherence, String> {
        [Coherence::Strict, Coherence::CloseToOpen]
            .into_iter()
            .find(|coherence| coherence.name() == text)
            .ok_or_else(|| {
                format!("`{text}` is no kind of coherence: there are `strict` and `close-to-open`")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused_by_name() {
        for coherence in [Coherence::Strict, Coherence::CloseToOpen] {
            assert_eq!(coherence.to_string().parse(), Ok(coherence));
        }
        let refused = "closetoopen".parse::<Coherence>().unwrap_err();
        assert!(refused.contains("`closetoopen`") && refused.contains("`close-to-open`"), "{refused}");
    }

    #[test]
    fn what_is_kept_and_what_is_told_late_are_within_the_bound() {
        assert!(Coherence::KEPT_MAX + Coherence::ASKED_AFTER <= Coherence::LATE_MAX);
    }
}
