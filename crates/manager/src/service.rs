//! What a manager does for others: it lets machines join, and keeps the map.

mod chains;
mod copies;
mod domains;
mod filesets;
mod holders;
mod moves;
mod pools;
mod presence;
mod removal;
mod restore;
mod shared_disks;
#[cfg(test)]
mod tests;
mod works;

pub(crate) use copies::check as check_copies;
pub use removal::{EtcdMembers, KnownMember};
pub(crate) use shared_disks::check as check_disks;

use crate::state::{ClusterState, MetadataRecord, PromisedTarget};
use crate::token::Token;
use crate::{Authority, FoundTarget, Manager, ManagerError, TokenRecord, map_change};
use ashlar_env::Env;
use ashlar_replication::hand_over::shard::transfer;
use ashlar_types::map::TargetState;
use ashlar_types::message::{ManagerPapers, ManagerReply, ManagerRequest};
use ashlar_types::{
    ClusterMap, CopyGroup, Epoch, EventKind, Happening, Node, NodeId, NodePolicy, PeerId, Places, PoolId,
    Role, Roles, ShardId, TargetId,
};
use parking_lot::{Mutex, RwLock};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// For how long a used token is remembered, seconds: a join whose answer was lost is asked again meanwhile.
const USED_S: u64 = 60 * 60;

/// For how long a token that is too old is kept nevertheless, seconds. Another manager's clock may be behind by a day, and it may be used there.
const KEPT_S: u64 = 2 * 24 * 60 * 60;

/// Shortest time between two looks at the state for somebody unknown.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// See the module.
pub struct ManagerService {
    manager: Manager,
    authority: Authority,
    /// Certificate of the authority, DER.
    authority_der: Vec<u8>,
    env: Env,
    /// Where the state is, for other managers; empty where they cannot use it.
    store: RwLock<String>,
    /// When somebody unknown last had the state looked at anew.
    looked: Mutex<Option<Instant>>,
    /// What targets have told of themselves.
    reports: moves::Reports,
    /// What was heard of servers.
    presences: presence::Presences,
    /// Who serves which directory.
    held: holders::Held,
    copy_hosts: copies::CopyHosts,
    lacks: chains::Remembered,
    disks: shared_disks::HeardOfDisks,
    /// Which node this manager is on, once that is known.
    own: OnceLock<NodeId>,
    /// Members of an etcd that was set up for the file system.
    etcd_members: OnceLock<Box<EtcdMembers>>,
}

fn refused(what: impl Into<String>) -> ManagerError {
    ManagerError::Invalid(what.into())
}

/// What a node is called, for people.
fn name(map: &ClusterMap, node: NodeId) -> String {
    map.node(node).map_or_else(|| node.to_string(), |known| known.name.clone())
}

impl ManagerService {
    /// The service over `manager`, whose state is where `store` says (JSON, `docs/formats/cluster-state.md`), if other managers can use it.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when the secrets are damaged.
    pub fn new(manager: Manager, env: Env, store: String) -> Result<ManagerService, ManagerError> {
        use rustls_pki_types::pem::PemObject;
        let authority = manager.authority()?;
        let der = rustls_pki_types::CertificateDer::from_pem_slice(authority.certificate().as_bytes())
            .map_err(|error| refused(format!("the certificate of the authority is damaged: {error}")))?;
        Ok(ManagerService {
            authority_der: der.to_vec(),
            manager,
            authority,
            env,
            store: RwLock::new(store),
            looked: Mutex::default(),
            reports: moves::Reports::default(),
            presences: presence::Presences::default(),
            held: holders::Held::default(),
            copy_hosts: copies::CopyHosts::default(),
            lacks: chains::Remembered::default(),
            disks: shared_disks::HeardOfDisks::default(),
            own: OnceLock::new(),
            etcd_members: OnceLock::new(),
        })
    }

    /// Has other managers told that the state is where `store` says.
    pub fn set_store(&self, store: String) {
        *self.store.write() = store;
    }

    /// The map, kept current.
    pub fn map(&self) -> Arc<RwLock<Arc<ClusterMap>>> {
        self.manager.map()
    }

    /// The state behind it.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Whether `key` is the public key of a token that can be used now, or was by the node that asks again.
    pub fn knows_token(&self, key: &[u8; 32]) -> bool {
        self.knows_token_already(key) || self.has_looked_anew() && self.knows_token_already(key)
    }

    fn knows_token_already(&self, key: &[u8; 32]) -> bool {
        let now = self.now_s();
        self.manager.state().tokens.iter().any(|token| token.public_key == *key && is_usable(token, now))
    }

    /// Looks whether another manager has changed the state, for somebody who is not known. Tells whether it did: not more often than
    /// strangers may make it.
    pub fn has_looked_anew(&self) -> bool {
        {
            let mut looked = self.looked.lock();
            let now = Instant::now();
            if !self.manager.is_shared() || looked.is_some_and(|at| now.duration_since(at) < LOOK_PAUSE) {
                return false;
            }
            *looked = Some(now);
        }
        self.manager.refresh().is_ok()
    }

    /// Whether the machine that has the certificate `id` may speak in the place of its node: it keeps a copy of that metadata server.
    pub(crate) fn is_in_place(&self, id: PeerId) -> bool {
        let Some(host) = id.host else { return true };
        let is_kept = || {
            let is_kept_by = |group: &CopyGroup| group.is_kept_by(host);
            self.manager.with_state(|state| state.copies.group(id.node).is_some_and(is_kept_by))
        };
        is_kept() || self.has_looked_anew() && is_kept()
    }

    pub(crate) fn now_s(&self) -> u64 {
        self.env.clock.now().secs.max(0) as u64
    }

    /// Carries out a call of `peer`; `token` is the public key of the token it came with. Calls for the map are answered at once: whoever
    /// holds them back until there is a newer one asks here when there is.
    pub fn call(&self, peer: PeerId, token: Option<[u8; 32]>, request: ManagerRequest) -> ManagerReply {
        match self.carry_out(peer, token, request) {
            Ok(reply) => reply,
            Err(error) => ManagerReply::Refused(error.to_string()),
        }
    }

    fn carry_out(
        &self,
        peer: PeerId,
        token: Option<[u8; 32]>,
        request: ManagerRequest,
    ) -> Result<ManagerReply, ManagerError> {
        require_role(peer, &request)?;
        match request {
            ManagerRequest::Join { name, public_key } => self.join(token, &name, &public_key),
            ManagerRequest::Renew { public_key } => self.renew(peer, &public_key),
            ManagerRequest::Map { .. } => {
                Ok(ManagerReply::Map(Box::new(ClusterMap::clone(&self.map().read()))))
            }
            ManagerRequest::Listen { role, addresses } => {
                self.listen(peer, role, &Places { addresses, ..Places::default() })
            }
            ManagerRequest::ListenApart { role, addresses, management, targets } => {
                self.listen(peer, role, &Places { addresses, management, targets })
            }
            ManagerRequest::NewTarget { uuid, path, pool } => self.new_target(peer.node, uuid, &path, &pool),
            ManagerRequest::Serve { targets } => {
                let found: Vec<FoundTarget> =
                    targets.into_iter().map(|(id, uuid, path)| FoundTarget { id, uuid, path }).collect();
                self.serve(peer.node, &found)
            }
            ManagerRequest::MetaIdentity { uuid, path } => self.meta_identity(peer.node, uuid, &path),
            ManagerRequest::RestoreMetadata { set, uuid, seen, instead_of } => {
                self.restore_metadata(peer.node, (set, uuid), seen, instead_of)
            }
            ManagerRequest::TransferShards { shards, from, to, seen } => {
                self.transfer_shards(peer.node, &shards, (from, to), seen)
            }
            ManagerRequest::NewToken { roles, valid_s, policy } => {
                self.new_token(peer.node, roles, valid_s, &policy)
            }
            ManagerRequest::RemoveNode { node, is_own_meant } => {
                self.remove_node(peer.node, node, is_own_meant)
            }
            ManagerRequest::SetPolicy { node, seen, policy } => {
                self.set_policy(peer.node, node, &seen, &policy)
            }
            ManagerRequest::Report { what } => self.report(peer.node, what),
            ManagerRequest::Events { after } => self.events(after),
            ManagerRequest::SetDraining { targets, is_draining } => self.set_draining(&targets, is_draining),
            ManagerRequest::RemoveTarget { target } => self.remove_target(target),
            ManagerRequest::NewPool { name } => self.new_pool(&name),
            ManagerRequest::RemovePool { name } => self.remove_pool(&name),
            ManagerRequest::SetMoves { is_paused, rate_mib_s, rebalancing } => {
                self.set_moves(is_paused, rate_mib_s, rebalancing)
            }
            ManagerRequest::EndMove { chain, from, since, is_given_up } => {
                self.end_move(peer.node, chain, (from, since), is_given_up)
            }
            ManagerRequest::ReportTargets { targets } => self.report_targets(peer.node, targets),
            ManagerRequest::SealingKeys => self.sealing_keys(),
            ManagerRequest::OpenKey => self.open_key(),
            ManagerRequest::CheckingKeys => self.checking_keys(peer.node),
            ManagerRequest::RotateKeys => self.rotate_keys(),
            ManagerRequest::NewFileset { root, parent } => self.new_fileset(root, parent),
            ManagerRequest::EncloseFileset { fileset, parent } => self.enclose_fileset(fileset, parent),
            ManagerRequest::SetDomain { node, domain } => self.set_domain(peer.node, node, &domain),
            ManagerRequest::Present { role } => self.note_present(peer, role),
            ManagerRequest::Presence => self.presence(),
            ManagerRequest::ClaimStart { role, found, tag, is_older_accepted, is_taking_over } => {
                let claim = holders::Claim { role, found, tag, is_older_accepted, is_taking_over };
                self.claim_start(peer, &claim)
            }
            ManagerRequest::HoldStarts { role, held, is_ending } => {
                self.hold_starts(peer, role, &held, is_ending)
            }
            ManagerRequest::SetShardMoves { is_paused } => self.set_shard_moves(is_paused),
            ManagerRequest::ShardMoves => Ok(self.shard_moves()),
            ManagerRequest::MoveWorks => Ok(ManagerReply::MoveWorks(self.works())),
            ManagerRequest::CopyWorks => Ok(ManagerReply::CopyWorks(self.copy_works())),
            ManagerRequest::Copies => Ok(self.copies(peer.node)),
            ManagerRequest::SetCopies { server, wanted } => self.set_copies(peer.node, server, wanted),
            ManagerRequest::HostCopies { addresses } => self.host_copies(peer.node, addresses),
            ManagerRequest::FoundCopies { uuid } => self.found_copies(peer.node, uuid),
            ManagerRequest::ChangeCopies { server, expected, change } => {
                self.change_copies(peer.node, server, expected, change)
            }
            ManagerRequest::BeginService { server, epoch } => self.begin_service(peer.node, server, epoch),
            ManagerRequest::ServeCopy { server, epoch, addresses, management } => {
                let places = Places { addresses, management, targets: Vec::new() };
                self.serve_copy(peer.node, (server, epoch), &places)
            }
            ManagerRequest::CertifyServer { server, public_key } => {
                self.certify_server(peer.node, server, &public_key)
            }
            ManagerRequest::ChangeChains { by, changes } => self.change_chains(peer.node, by, &changes),
            ManagerRequest::CopyPool { pool, copies } => self.copy_pool(&pool, copies),
            ManagerRequest::ShareDisks { words } => self.share_disks(peer, &words),
            ManagerRequest::UseDisk { disk } => self.use_disk(peer, disk),
            ManagerRequest::SharedDisks => Ok(self.shared_disks()),
            ManagerRequest::MoveDisk { disk, to } => self.move_disk(peer.node, disk, to),
            ManagerRequest::ConfirmFenced { node } => self.confirm_fenced(peer.node, node),
        }
    }

    /// A certificate of `node`, which `host` has in its place if that is given.
    ///
    /// # Errors
    /// When `public_key` is none.
    fn certify(
        &self,
        (node, host): (NodeId, Option<NodeId>),
        roles: Roles,
        public_key: &[u8],
    ) -> Result<String, ManagerError> {
        let peer = PeerId { cluster: self.manager.identity().cluster, node, roles, host };
        self.authority.issue(peer, public_key, self.env.clock.now())
    }

    fn join(
        &self,
        token: Option<[u8; 32]>,
        name: &str,
        public_key: &[u8],
    ) -> Result<ManagerReply, ManagerError> {
        let token = token.ok_or_else(|| refused("only who has a token can join"))?;
        if !Node::is_name(name) {
            return Err(refused(format!(
                "`{}` cannot be the name of a node: letters, digits, `-`, `_` and `.`, {} at the most",
                name.escape_debug(),
                Node::NAME_BYTES_MAX
            )));
        }
        // Before the token is used: a key that is none costs nobody a token.
        self.certify((NodeId(0), None), Roles::default(), public_key)?;
        let now = self.now_s();
        let (node, roles) = self.manager.change(|state| {
            let record = state.tokens.iter_mut().find(|record| record.public_key == token);
            let record = record.filter(|record| is_usable(record, now));
            let record = record.ok_or_else(|| {
                refused("the token is too old, or was used long ago: `ashlar token` on a manager makes a new one")
            })?;
            if let Some((node, key)) = &record.used_by {
                let by = state.map.node(*node).map(|known| known.name.clone());
                let is_again = key == public_key && by.as_deref() == Some(name);
                if is_again {
                    return Ok((*node, record.roles));
                }
                return Err(refused(format!(
                    "the token was used already, by {}: `ashlar token` on a manager makes a new one for this machine",
                    by.unwrap_or_else(|| node.to_string())
                )));
            }
            if let Some(other) = state.map.nodes.iter().find(|node| node.name == name) {
                return Err(refused(format!(
                    "there is a node `{name}` already, {}: choose another name, or remove it first (`ashlar node remove {name}`)",
                    other.id
                )));
            }
            let id = NodeId(state.last_node.0 + 1);
            record.used_by = Some((id, public_key.to_vec()));
            let (roles, policy) = (record.roles, record.policy.clone());
            state.last_node = id;
            let (name, listening, domain) = (name.to_owned(), Vec::new(), String::new());
            state.map.nodes.push(Node { id, name, roles, listening, policy, domain });
            Ok((id, roles))
        })?;
        let certificate = self.certify((node, None), roles, public_key)?;
        tracing::info!(%node, name, %roles, "a node has joined");
        Ok(ManagerReply::Joined {
            cluster: self.manager.identity().cluster,
            node,
            roles,
            certificate,
            authority: self.authority.certificate().to_owned(),
            managers: self.managers_of_new(roles),
            manager: (roles.has(Role::Manager))
                .then(|| ManagerPapers { secrets: self.manager.secrets(), store: self.store.read().clone() }),
        })
    }

    fn managers(&self) -> Vec<std::net::SocketAddr> {
        self.map().read().addresses(Role::Manager)
    }

    /// Where a machine that has no map yet finds managers: administrators and consoles at their addresses for management, if there are such.
    fn managers_of_new(&self, roles: Roles) -> Vec<std::net::SocketAddr> {
        let map = self.map().read().clone();
        let is_of_management = roles.iter().any(Role::is_of_management);
        let apart = map.listening(Role::Manager).flat_map(|node| node.management(Role::Manager));
        apart.filter(|_| is_of_management).copied().chain(self.managers()).collect()
    }

    /// A new certificate for `peer`, which has the key that belongs to `public_key`.
    ///
    /// # Errors
    /// When it is not a node any more, or the key is none.
    pub fn renewed(&self, peer: PeerId, public_key: &[u8]) -> Result<String, ManagerError> {
        let map = self.map().read().clone();
        let node = map.node(peer.node).ok_or_else(|| refused(format!("{} was removed", peer.node)))?;
        // Not more than the certificate there is: one who keeps copies of a metadata server has its name, and not what else its machine may do.
        let roles = peer.roles.and(node.roles);
        let certificate = self.certify((node.id, peer.host), roles, public_key)?;
        self.note(node.id, EventKind::CertificateRenewed, &node.name, "good for another 90 days");
        Ok(certificate)
    }

    fn renew(&self, peer: PeerId, public_key: &[u8]) -> Result<ManagerReply, ManagerError> {
        self.renewed(peer, public_key).map(ManagerReply::Certificate)
    }

    fn note(&self, node: NodeId, kind: EventKind, subject: &str, text: &str) {
        if let Some(log) = self.manager.events() {
            log.note(node, kind, subject, text);
        }
    }

    /// Takes what a server tells of itself into the event log.
    fn report(&self, node: NodeId, what: Vec<Happening>) -> Result<ManagerReply, ManagerError> {
        if what.len() > ManagerRequest::REPORTS_MAX {
            return Err(refused(format!("more than {} events at once", ManagerRequest::REPORTS_MAX)));
        }
        if let Some(other) = what.iter().find(|told| !told.kind.is_told_by_servers()) {
            return Err(refused(format!("{} is for managers to tell", other.kind)));
        }
        if let Some(log) = self.manager.events() {
            what.into_iter().for_each(|told| log.take(node, told.tamed()));
        }
        Ok(ManagerReply::Done)
    }

    fn events(&self, after: u64) -> Result<ManagerReply, ManagerError> {
        let Some(log) = self.manager.events() else {
            return Err(refused("this manager keeps no events"));
        };
        // What has just happened is to be seen; if the store is away, what was there before is told.
        let trouble = log.write().err().map(|error| error.to_string()).unwrap_or_default();
        Ok(ManagerReply::Events { events: log.after(after), trouble })
    }

    fn listen(&self, peer: PeerId, role: Role, places: &Places) -> Result<ManagerReply, ManagerError> {
        if !peer.roles.has(role) {
            return Err(refused(format!("the certificate of {} does not allow it to be {role}", peer.node)));
        }
        places.check().map_err(refused)?;
        self.manager.change(|state| {
            if role == Role::Meta {
                Self::require_no_copies(state, peer.node)?;
            }
            let node = state.map.nodes.iter_mut().find(|node| node.id == peer.node);
            let node = node.ok_or_else(|| refused(format!("{} was removed", peer.node)))?;
            node.listening.retain(|listening| listening.role != role);
            node.listening.extend(places.entries(role));
            // Those of a role stay in their order.
            node.listening.sort_by_key(|listening| listening.role);
            Ok(())
        })?;
        Ok(ManagerReply::Done)
    }

    fn new_target(
        &self,
        node: NodeId,
        uuid: [u8; 16],
        path: &str,
        pool: &str,
    ) -> Result<ManagerReply, ManagerError> {
        let id = self.manager.change(|state| {
            if let Some(known) = state.promised.iter().find(|known| known.uuid == uuid) {
                return Ok(known.id);
            }
            let pool = pools::of_new_target(&state.map, pool)?;
            // LIMIT: of targets that were promised an id and never served.
            if state.promised.len() >= 1024 {
                state.promised.remove(0);
            }
            state.last_target = TargetId(state.last_target.0 + 1);
            let (id, path) = (state.last_target, path.to_owned());
            state.promised.push(PromisedTarget { id, uuid, path, node, pool });
            Ok(id)
        })?;
        Ok(ManagerReply::Target(id))
    }

    /// As [`Manager::change`]; before it refuses, this manager looks whether another one knows better.
    fn change_or_look<T>(
        &self,
        mut change: impl FnMut(&mut ClusterState) -> Result<T, ManagerError>,
    ) -> Result<T, ManagerError> {
        let is_refusal = |outcome: &Result<T, _>| matches!(outcome, Err(ManagerError::Invalid(_)));
        self.look_again(|| self.manager.change(&mut change), is_refusal)?
    }

    /// What `ask` answers; if that is a refusal and there are other managers, once more by what they have written meanwhile.
    fn look_again<T>(
        &self,
        mut ask: impl FnMut() -> T,
        is_refusal: impl Fn(&T) -> bool,
    ) -> Result<T, ManagerError> {
        let answer = ask();
        if !is_refusal(&answer) || !self.manager.is_shared() {
            return Ok(answer);
        }
        self.manager.refresh()?;
        Ok(ask())
    }

    fn serve(&self, node: NodeId, found: &[FoundTarget]) -> Result<ManagerReply, ManagerError> {
        let served = self.change_or_look(|state| {
            // Ids are given out before targets serve, and not all that were given out ever do.
            let ClusterState { map, promised, starts, shared_disks, .. } = state;
            let is_known = |id: TargetId| map.target(id).is_some() || promised.iter().any(|known| known.id == id);
            if let Some(removed) = found.iter().find(|found| !is_known(found.id)) {
                return Err(refused(format!(
                    "{} was removed from the file system: leave its directory {} out (with --without, if `ashlar target add` has added it); what is in it is of no use any more",
                    removed.id, removed.path
                )));
            }
            let pool_of =
                |id| promised.iter().find(|known| known.id == id).map_or(PoolId(0), |known| known.pool);
            let holds = |uuid| starts.iter().any(|known| known.uuid == uuid && known.node == node);
            let mut next = map_change::with_targets_of_any_id(map, found, node, (&pool_of, &holds))?;
            shared_disks::keep_online(&mut next, map, shared_disks);
            state.map = next;
            state.promised.retain(|known| !found.iter().any(|found| found.id == known.id));
            Ok(())
        });
        if let Err(error) = &served {
            self.note_claims(node, found, error);
        }
        served.map(|()| ManagerReply::Done)
    }

    /// Notes which of the targets that `node` has found another one serves.
    fn note_claims(&self, node: NodeId, found: &[FoundTarget], error: &ManagerError) {
        let map = self.map().read().clone();
        for target in &map.targets {
            let is_found = found.iter().any(|found| found.uuid == target.uuid);
            if is_found && target.node != node && target.state == TargetState::Online {
                self.note(node, EventKind::TargetClaimedTwice, &target.id.to_string(), &error.to_string());
            }
        }
    }

    /// Lets a metadata server serve. The first one gets all shards, others ask for some. One whose directory has come to another node takes its
    /// shards along.
    ///
    /// ORDER: a new epoch before it serves. What it had agreed on with another server before it was started, and does not know any more, is not
    /// carried out by a question that comes late.
    fn meta_identity(&self, node: NodeId, uuid: [u8; 16], path: &str) -> Result<ManagerReply, ManagerError> {
        self.change_or_look(|state| {
            Self::require_no_copies(state, node)?;
            let known = state.metadata.iter().position(|known| known.uuid == uuid);
            require_only_metadata(state, node, uuid, path)?;
            let held = state.starts.iter().find(|known| known.uuid == uuid);
            if let Some(held) = held.filter(|held| held.node != node) {
                return Err(refused(format!(
                    "the metadata at {path} is served by {}, at {}",
                    held.node, held.path
                )));
            }
            let before = match known {
                Some(at) => Some(state.metadata[at].node),
                None => state.metadata.is_empty().then(|| state.map.shards[0].primary),
            };
            let record = MetadataRecord { uuid, node, path: path.to_owned() };
            match known {
                Some(at) => state.metadata[at] = record,
                // LIMIT: one per node.
                None => state.metadata.push(record),
            }
            for shard in &mut state.map.shards {
                if before == Some(shard.primary) {
                    shard.primary = node;
                }
            }
            state.map.epoch = Epoch(state.map.epoch.0 + 1);
            Ok(())
        })?;
        let name_hash_key = self.manager.identity().name_hash_key;
        Ok(ManagerReply::MetaIdentity { name_hash_key, epoch: self.map().read().epoch })
    }

    /// Gives shards from one metadata server, the caller, to another, if the map is still the one that was seen. So a question that is late is never
    /// carried out after one of both has been started anew: a start changes the epoch ([`ManagerService::meta_identity`]). What it tells is proven, also a refusal: this
    /// manager may be behind, and a question that was asked before at another one be carried out yet.
    fn transfer_shards(
        &self,
        caller: NodeId,
        shards: &[ShardId],
        (from, to): (NodeId, NodeId),
        seen: Epoch,
    ) -> Result<ManagerReply, ManagerError> {
        if caller != from {
            return Err(refused("shards are given away by who has them"));
        }
        let transferred = self.manager.change_and_prove(|state| {
            let map = &state.map;
            let decide = |shard: &ShardId| transfer(map.epoch, &map.primary(*shard)?, &from, seen);
            let decided: Vec<Option<bool>> = shards.iter().map(decide).collect();
            // Asked for once more: the answer was lost.
            if decided.iter().all(|is_due| *is_due == Some(false)) {
                return Ok(Ok(()));
            }
            if map.epoch != seen {
                return Ok(Err(format!("the map is of {} by now", map.epoch)));
            }
            if decided.iter().any(|is_due| *is_due != Some(true)) {
                return Ok(Err(format!("not all of these shards are served by {from}")));
            }
            if !state.metadata.iter().any(|known| known.node == to) {
                return Ok(Err(format!("{to} is no metadata server")));
            }
            for shard in state.map.shards.iter_mut().filter(|shard| shards.contains(&shard.id)) {
                shard.primary = to;
            }
            Ok(Ok(()))
        })?;
        Ok(ManagerReply::Transferred(transferred))
    }

    fn new_token(
        &self,
        by: NodeId,
        roles: Roles,
        valid_s: u32,
        policy: &NodePolicy,
    ) -> Result<ManagerReply, ManagerError> {
        policy.check().map_err(refused)?;
        let managers = self.managers();
        if managers.is_empty() {
            return Err(refused("no manager listens yet"));
        }
        if roles == Roles::default() || roles.has(Role::Joiner) {
            return Err(refused("a token is for at least one role"));
        }
        if roles.has(Role::Manager) && !self.manager.is_shared() {
            return Err(refused(
                "the state of this file system is in a file of its only manager, which another one cannot use: `ashlar manager --move-to-etcd --etcd URL` on that machine moves it to an etcd, where several can",
            ));
        }
        let mut secret = [0; 16];
        self.env.entropy.fill(&mut secret);
        let token =
            Token::new(secret, &self.authority_der, managers.into_iter().take(Token::MANAGERS_MAX).collect());
        let (public_key, now) = (token.public_key()?, self.now_s());
        self.manager.change_by(Some(by), |state| {
            filesets::require_subtree(&state.map, policy)?;
            state.tokens.retain(|token| now < token.expires_s.saturating_add(KEPT_S));
            if !state.has_room_for_tokens() {
                // Many machines join at once: of those that have, none asks again for so long.
                state.tokens.retain(|token| token.used_by.is_none() || is_remembered(token, now));
            }
            if !state.has_room_for_tokens() {
                return Err(refused(
                    "too many tokens are waiting to be used, or were used just now: an hour after its end a token that was used takes no room any more",
                ));
            }
            let expires_s = now + u64::from(valid_s);
            let policy = policy.clone();
            state.tokens.push(TokenRecord { public_key, roles, expires_s, used_by: None, policy });
            Ok(())
        })?;
        Ok(ManagerReply::Token(token.text()))
    }

    fn set_policy(
        &self,
        by: NodeId,
        node: NodeId,
        seen: &NodePolicy,
        policy: &NodePolicy,
    ) -> Result<ManagerReply, ManagerError> {
        policy.check().map_err(refused)?;
        self.manager.change_by(Some(by), |state| {
            filesets::require_subtree(&state.map, policy)?;
            let known = state.map.nodes.iter_mut().find(|known| known.id == node);
            let known = known.ok_or_else(|| refused(format!("there is no {node}")))?;
            // One whose answer was lost is told again that it is done.
            if known.policy != *seen && known.policy != *policy {
                return Err(refused(format!(
                    "the policy of {} was changed meanwhile, to: {}; look at it (`ashlar node show {}`) and change it again",
                    known.name, known.policy, known.name
                )));
            }
            known.policy = policy.clone();
            Ok(())
        })?;
        tracing::info!(%node, %policy, "the policy of a node was set");
        Ok(ManagerReply::Done)
    }
}

/// Refuses a metadata directory of a node that has another one.
fn require_only_metadata(
    state: &ClusterState,
    node: NodeId,
    uuid: [u8; 16],
    path: &str,
) -> Result<(), ManagerError> {
    let other = state.metadata.iter().find(|other| other.node == node && other.uuid != uuid);
    match other {
        Some(other) => Err(refused(format!(
            "the metadata of {node} is at {}, and {path} is another directory: is its disk mounted?",
            other.path
        ))),
        None => Ok(()),
    }
}

fn is_usable(token: &TokenRecord, now_s: u64) -> bool {
    now_s < token.expires_s || token.used_by.is_some() && is_remembered(token, now_s)
}

fn is_remembered(token: &TokenRecord, now_s: u64) -> bool {
    now_s < token.expires_s.saturating_add(if token.used_by.is_some() { USED_S } else { 0 })
}

/// Whether a machine that keeps a copy of a metadata server may ask for that in its name: what a metadata service asks for itself. What it asks as the machine that it is, it asks with
/// the certificate of its own, by which managers see who it is. Every request is named, so that a new one is thought about.
fn may_ask_in_place_of(request: &ManagerRequest) -> bool {
    match request {
        ManagerRequest::Map { .. }
        | ManagerRequest::Present { .. }
        | ManagerRequest::Report { .. }
        | ManagerRequest::TransferShards { .. }
        | ManagerRequest::SealingKeys
        | ManagerRequest::OpenKey
        | ManagerRequest::ShardMoves => true,
        ManagerRequest::Join { .. }
        | ManagerRequest::Renew { .. }
        | ManagerRequest::Listen { .. }
        | ManagerRequest::ListenApart { .. }
        | ManagerRequest::NewTarget { .. }
        | ManagerRequest::Serve { .. }
        | ManagerRequest::EndMove { .. }
        | ManagerRequest::ReportTargets { .. }
        | ManagerRequest::ChangeChains { .. }
        | ManagerRequest::MetaIdentity { .. }
        | ManagerRequest::RestoreMetadata { .. }
        | ManagerRequest::HostCopies { .. }
        | ManagerRequest::FoundCopies { .. }
        | ManagerRequest::ChangeCopies { .. }
        | ManagerRequest::BeginService { .. }
        | ManagerRequest::ServeCopy { .. }
        | ManagerRequest::CertifyServer { .. }
        | ManagerRequest::Copies
        | ManagerRequest::SetCopies { .. }
        | ManagerRequest::CopyPool { .. }
        | ManagerRequest::ShareDisks { .. }
        | ManagerRequest::UseDisk { .. }
        | ManagerRequest::SharedDisks
        | ManagerRequest::MoveDisk { .. }
        | ManagerRequest::ConfirmFenced { .. }
        | ManagerRequest::ClaimStart { .. }
        | ManagerRequest::HoldStarts { .. }
        | ManagerRequest::CheckingKeys
        | ManagerRequest::RotateKeys
        | ManagerRequest::NewToken { .. }
        | ManagerRequest::RemoveNode { .. }
        | ManagerRequest::SetPolicy { .. }
        | ManagerRequest::SetDraining { .. }
        | ManagerRequest::RemoveTarget { .. }
        | ManagerRequest::NewPool { .. }
        | ManagerRequest::RemovePool { .. }
        | ManagerRequest::SetMoves { .. }
        | ManagerRequest::NewFileset { .. }
        | ManagerRequest::EncloseFileset { .. }
        | ManagerRequest::SetDomain { .. }
        | ManagerRequest::SetShardMoves { .. }
        | ManagerRequest::Presence
        | ManagerRequest::Events { .. }
        | ManagerRequest::CopyWorks
        | ManagerRequest::MoveWorks => false,
    }
}

/// Who may ask for what.
fn require_role(peer: PeerId, request: &ManagerRequest) -> Result<(), ManagerError> {
    if let Some(host) = peer.host
        && !may_ask_in_place_of(request)
    {
        return Err(refused(format!(
            "{host} may not do that in the place of {}: a certificate that it has as one that keeps a copy of its metadata is for its metadata service alone",
            peer.node
        )));
    }
    let allowed: &[Role] = match request {
        ManagerRequest::Join { .. } => &[Role::Joiner],
        ManagerRequest::Renew { .. } | ManagerRequest::Map { .. } => {
            &[Role::Manager, Role::Meta, Role::Storage, Role::Client, Role::Admin, Role::Console]
        }
        ManagerRequest::Listen { .. }
        | ManagerRequest::ListenApart { .. }
        | ManagerRequest::Present { .. } => &[Role::Manager, Role::Meta, Role::Storage],
        ManagerRequest::NewTarget { .. }
        | ManagerRequest::Serve { .. }
        | ManagerRequest::EndMove { .. }
        | ManagerRequest::ReportTargets { .. }
        | ManagerRequest::ShareDisks { .. }
        | ManagerRequest::UseDisk { .. }
        | ManagerRequest::ChangeChains { .. } => &[Role::Storage],
        ManagerRequest::MetaIdentity { .. }
        | ManagerRequest::TransferShards { .. }
        | ManagerRequest::RestoreMetadata { .. }
        | ManagerRequest::HostCopies { .. }
        | ManagerRequest::FoundCopies { .. }
        | ManagerRequest::ChangeCopies { .. }
        | ManagerRequest::BeginService { .. }
        | ManagerRequest::ServeCopy { .. }
        | ManagerRequest::CertifyServer { .. } => &[Role::Meta],
        ManagerRequest::SealingKeys | ManagerRequest::OpenKey => &[Role::Meta],
        ManagerRequest::CheckingKeys => &[Role::Storage],
        ManagerRequest::NewToken { .. }
        | ManagerRequest::RemoveNode { .. }
        | ManagerRequest::SetPolicy { .. }
        | ManagerRequest::SetDraining { .. }
        | ManagerRequest::RemoveTarget { .. }
        | ManagerRequest::NewPool { .. }
        | ManagerRequest::RemovePool { .. }
        | ManagerRequest::SetMoves { .. }
        | ManagerRequest::RotateKeys
        | ManagerRequest::NewFileset { .. }
        | ManagerRequest::EncloseFileset { .. }
        | ManagerRequest::SetDomain { .. }
        | ManagerRequest::SetCopies { .. }
        | ManagerRequest::CopyPool { .. }
        | ManagerRequest::MoveDisk { .. }
        | ManagerRequest::ConfirmFenced { .. }
        | ManagerRequest::SetShardMoves { .. } => &[Role::Admin],
        ManagerRequest::Presence
        | ManagerRequest::Events { .. }
        | ManagerRequest::SharedDisks
        | ManagerRequest::CopyWorks
        | ManagerRequest::MoveWorks => &[Role::Admin, Role::Console],
        ManagerRequest::ShardMoves | ManagerRequest::Copies => &[Role::Meta, Role::Admin, Role::Console],
        ManagerRequest::Report { .. }
        | ManagerRequest::ClaimStart { .. }
        | ManagerRequest::HoldStarts { .. } => &[Role::Meta, Role::Storage],
    };
    if allowed.iter().any(|role| peer.roles.has(*role)) {
        return Ok(());
    }
    Err(refused(format!("{} may not do that: its certificate is for {}", peer.node, peer.roles)))
}
