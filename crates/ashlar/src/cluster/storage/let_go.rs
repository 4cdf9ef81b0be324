//! Targets that were taken out of the file system go out of service, and nothing else notices.

use super::in_service::InService;
use anyhow::{Context, Result};
use ashlar_types::TargetId;
use std::sync::Arc;

impl InService {
    /// Lets go of what was taken out of the file system, each target by a thread of its own: its disk may hang. To be called a few times a second.
    pub fn turn(self: &Arc<Self>) {
        for id in self.newly_removed() {
            let own = self.clone();
            let run = move || {
                if let Err(error) = own.let_go_removed(id) {
                    tracing::error!(target_id = %id, "a target that was removed is not let go of as it should be: {error:#}");
                }
            };
            if let Err(error) = self.parts.member.env.tasks.spawn("ashlar-let-go", Box::new(run)) {
                tracing::error!(%error, target_id = %id, "a target that was removed stays in service until this server is started anew");
            }
        }
    }

    fn let_go_removed(&self, id: TargetId) -> Result<()> {
        let Some((path, uuid)) = self.place_of(id) else { return Ok(()) };
        let dir = path.parent().unwrap_or(&path);
        {
            let _alone = self.changing.lock();
            // ORDER: before it is let go of: the next start leaves the directory out, also if its --data is listed yet.
            let mut remembered = self.remembered.lock();
            remembered.remove(dir, uuid);
            remembered.store(self.parts.member.directory()).context("the next start will not know of it")?;
        }
        self.let_go(id)?;
        eprintln!("ashlar: {id} was removed from the file system; {} is not used any more", dir.display());
        Ok(())
    }
}
