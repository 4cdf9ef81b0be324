//! What must be there after the machine has stopped.

use super::{Expected, Oracle, Pairs, forget_dead, is_inline, push_new, replay};
use crate::content::Content;
use crate::model::{self, Model};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

impl Oracle {
    /// The machine has stopped and the lane was opened again: finds the commit up to which it goes. With `is_power_cut` any
    /// commit since the last sync will do. False when there is none.
    /// `hidden` files have data on a target that is missing.
    pub fn recovered(&mut self, pairs: &Pairs, is_power_cut: bool, hidden: BTreeSet<u64>) -> bool {
        let mut at = self.base.clone();
        let mut found = None;
        if pairs == &at && (is_power_cut || self.commits.is_empty()) {
            found = Some((0, self.base_model.clone()));
        }
        for (count, commit) in (1..).zip(self.commits.iter().chain(&self.attempt)) {
            replay(&mut at, &commit.writes);
            let is_attempt = count > self.commits.len();
            let is_candidate = is_power_cut || count >= self.commits.len();
            if pairs == &at && is_candidate && !(is_attempt && found.is_some()) {
                found = Some((count, commit.model.clone()));
            }
        }
        let Some((count, mut model)) = found else {
            self.fail_lane(pairs, &at, is_power_cut);
            return false;
        };
        let mut versions = self.expected_contents(&model, count > self.commits.len(), is_power_cut);
        for inode in model.nodes.keys() {
            // What is with the inode is in the log: exactly as it was then.
            if is_power_cut && is_inline(pairs, *inode) {
                versions.remove(inode);
            }
        }
        let mut unknown = self.unknown_now();
        unknown.extend(self.expected.iter().flat_map(|earlier| &earlier.unknown));
        forget_dead(&mut model);
        self.hidden = hidden;
        for inode in model.nodes.keys().copied().collect::<Vec<_>>() {
            if model.nodes[&inode].is_hidden != self.hidden.contains(&inode) {
                model.change(inode).is_hidden = self.hidden.contains(&inode);
            }
        }
        self.base = pairs.clone();
        self.base_model = model.clone();
        self.model = model.clone();
        self.commits.clear();
        (self.commits_dropped, self.durable, self.attempt) = (0, 0, None);
        self.pending.clear();
        self.doubts.clear();
        self.lose_times();
        self.sessions.clear();
        self.excused.clear();
        self.is_disk_broken = false;
        self.expected = Some(Expected { model, versions, unknown });
        true
    }

    fn fail_lane(&mut self, pairs: &Pairs, newest: &Pairs, is_power_cut: bool) {
        let differs = |(key, value): &(&Vec<u8>, &Bytes)| pairs.get(*key) != Some(*value);
        let missing: Vec<_> = newest.iter().filter(differs).take(3).collect();
        let extra: Vec<_> = pairs.keys().filter(|key| !newest.contains_key(*key)).take(3).collect();
        let (what, states) = (if is_power_cut { "power cut" } else { "crash" }, self.commits.len() + 1);
        self.fail(format!(
            "after a {what} the lane is none of the {states} states it may be in; of the newest {missing:?} are missing or other, \
             {extra:?} are too many"
        ));
    }

    /// For each file what its content may be.
    fn expected_contents(
        &self,
        model: &Model,
        is_attempt: bool,
        is_power_cut: bool,
    ) -> BTreeMap<u64, Vec<Content>> {
        let earlier = self.expected.as_ref().map(|expected| &expected.versions);
        let mut versions = BTreeMap::new();
        for (inode, node) in &model.nodes {
            let (Some(now), Some(then)) = (self.model.content(*inode), model.content(*inode)) else {
                continue;
            };
            let mut all = vec![now.clone()];
            if is_attempt {
                push_new(&mut all, then.clone());
            }
            let is_uncertain = self.model.nodes.get(inode).is_some_and(|now| now.is_uncertain);
            if is_power_cut || is_uncertain || node.is_uncertain {
                all.extend(self.versions.get(inode).cloned().unwrap_or_default());
            }
            all.extend(self.variants(*inode));
            all.extend(earlier.and_then(|earlier| earlier.get(inode)).cloned().unwrap_or_default());
            versions.insert(*inode, all);
        }
        for (&actor, pending) in &self.pending {
            if pending.op.is_write()
                && !pending.is_applied
                && let Some(inode) = pending.op.inode()
            {
                let mut after = self.model.clone();
                after.run(actor, &pending.op, 0);
                if let (Some(content), Some(all)) = (after.content(inode), versions.get_mut(&inode)) {
                    all.push(content.clone());
                }
            }
        }
        versions
    }

    /// Goes on with `found`, which was read back after a recovery, if it is what may be there.
    pub fn verify(&mut self, mut found: Model, is_power_cut: bool) {
        let Some(expected) = self.expected.take() else { return };
        self.put_hidden_back(&mut found, &expected);
        if let Some(what) = crate::compare::difference(&expected, &found) {
            let kind = if is_power_cut { "power cut" } else { "crash" };
            self.fail(format!("after a {kind}: {what}"));
        }
        self.base_model = found.clone();
        for commit in &mut self.commits {
            commit.model = found.clone();
        }
        let hidden = std::mem::take(&mut self.hidden);
        self.versions
            .retain(|inode, _| found.nodes.contains_key(inode) && (!is_power_cut || hidden.contains(inode)));
        for inode in hidden {
            let theirs = expected.versions.get(&inode).cloned().unwrap_or_default();
            self.versions.entry(inode).or_default().extend(theirs);
        }
        self.versions_dropped.clear();
        self.model = found;
        let files: Vec<u64> = self.model.nodes.keys().copied().collect();
        for inode in files {
            let Some(content) = self.model.content(inode).cloned() else { continue };
            self.versions.entry(inode).or_default().push(content);
        }
    }

    /// What could not be read is what it must be, until its target is back.
    fn put_hidden_back(&self, found: &mut Model, expected: &Expected) {
        for inode in &self.hidden {
            let Some(node) = expected.model.nodes.get(inode) else { continue };
            if !found.nodes.contains_key(inode) {
                continue;
            }
            let theirs = found.change(*inode);
            let versions = expected.versions.get(inode).map_or(&[][..], Vec::as_slice);
            let size = if let model::Kind::File(told) = &theirs.kind { told.size() } else { 0 };
            // The newest comes first; what is in chunks changes without a commit. One of another length is not there any more: the commit that cut the file is lost.
            let newest = versions.iter().find(|version| version.size() == size).or(versions.first());
            theirs.kind = newest.map_or(node.kind.clone(), |newest| model::Kind::File(newest.clone()));
            theirs.is_hidden = true;
            theirs.is_unknown = expected.unknown.contains(inode);
            theirs.is_uncertain = versions.windows(2).any(|pair| pair[0] != pair[1]) || theirs.is_unknown;
        }
    }

    /// What must be there now, with nothing under way.
    pub fn expected_now(&self) -> Expected {
        let mut versions = BTreeMap::new();
        for (inode, node) in &self.model.nodes {
            let all = match (node.is_uncertain, self.model.content(*inode)) {
                (true, _) => self.versions.get(inode).cloned().unwrap_or_default(),
                (false, Some(content)) if self.is_in_doubt(*inode) => vec![content.clone()],
                _ => continue,
            };
            versions.insert(*inode, all.into_iter().chain(self.variants(*inode)).collect());
        }
        Expected { model: self.model.clone(), versions, unknown: self.unknown_now() }
    }

    fn unknown_now(&self) -> BTreeSet<u64> {
        let nodes = self.model.nodes.iter();
        nodes.filter(|(_, node)| node.is_unknown).map(|(inode, _)| *inode).collect()
    }
}
