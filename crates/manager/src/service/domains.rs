//! Failure domains: what nodes can fail together with.

use super::{ManagerService, refused};
use crate::ManagerError;
use ashlar_types::message::ManagerReply;
use ashlar_types::{Node, NodeId};

impl ManagerService {
    /// Notes what `node` can fail together with; nothing for the empty name.
    pub(super) fn set_domain(
        &self,
        by: NodeId,
        node: NodeId,
        domain: &str,
    ) -> Result<ManagerReply, ManagerError> {
        if !domain.is_empty() && !Node::is_name(domain) {
            return Err(refused(format!(
                "`{}` cannot be the name of a failure domain: letters, digits, `-`, `_` and `.`, {} at the most",
                domain.escape_debug(),
                Node::NAME_BYTES_MAX
            )));
        }
        self.manager.change_by(Some(by), |state| {
            let known = state.map.nodes.iter_mut().find(|known| known.id == node);
            let known = known.ok_or_else(|| refused(format!("there is no {node}")))?;
            domain.clone_into(&mut known.domain);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }
}
