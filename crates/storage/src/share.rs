//! Targets on one local file system share its space: each is given a part, so that the sum over targets is what there is.

use ashlar_chunkstore::TargetSpace;

/// The part of `space` that belongs to one of `sharing` targets: what the target itself holds, and an equal part of what is anybody's.
pub(crate) fn among(space: &TargetSpace, sharing: u64) -> TargetSpace {
    let sharing = sharing.max(1);
    let anybodys = space.bytes_free.saturating_sub(space.bytes_held);
    let bytes_total = space.bytes_total / sharing;
    // A target may hold more than its part; `df` must not see more free than there is.
    let bytes_free = (anybodys / sharing + space.bytes_held).min(bytes_total);
    TargetSpace { bytes_total, bytes_free, bytes_held: space.bytes_held.min(bytes_free), ..*space }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(bytes_free: u64, bytes_held: u64) -> TargetSpace {
        TargetSpace { bytes_total: 1000, bytes_free, bytes_held, ..TargetSpace::default() }
    }

    #[test]
    fn a_target_alone_has_everything() {
        assert_eq!(among(&space(700, 100), 1), space(700, 100));
    }

    #[test]
    fn the_parts_of_targets_that_share_sum_up_to_what_there_is() {
        // 600 free on the disk; the first target holds 40 in free slots, the second 20.
        let parts = [among(&space(640, 40), 2), among(&space(620, 20), 2)];
        assert_eq!(parts.map(|part| part.bytes_total).iter().sum::<u64>(), 1000);
        assert_eq!(parts.map(|part| part.bytes_free), [340, 320]);
    }

    #[test]
    fn no_part_has_more_free_than_its_size() {
        assert_eq!(among(&space(900, 900), 2).bytes_free, 500);
    }
}
