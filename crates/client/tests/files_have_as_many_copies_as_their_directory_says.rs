//! Goal: who asks for copies gets chains that keep as many, and is refused where there are none. Method: all roles in this process; chains of several copies in the map alone, as nothing is
//! written.
#![allow(clippy::unwrap_used)] // the helpers of a test panic as the test does

mod support;

use ashlar_client::Who;
use ashlar_types::{ChainId, Errno, InodeId};
use support::{World, deaf_session, propose_layout};

#[test]
fn new_files_are_in_chains_of_as_many_copies_as_their_directory_says() {
    let world = World::with_more_targets(64 << 20, &[64 << 20, 64 << 20]);
    let (client, who) = (world.client(), Who::system());
    let set = |text: &str| client.layout_set_text(&who, InodeId::ROOT, text.as_bytes());
    assert!(client.layout_text(&who, InodeId::ROOT).unwrap().contains(" copies=1 "));
    for wrong in ["copies=2", "copies=4", "copies=0", "copies=two"] {
        assert_eq!(set(wrong), Err(Errno::EINVAL), "{wrong}");
    }
    let of_three = world.add_chain_of(&[1, 2, 3]);
    assert_eq!(set("copies=2"), Err(Errno::EINVAL), "there are chains of three alone");
    let of_two = world.add_chain_of(&[2, 3]);
    let propose = |name: &str| propose_layout(&world, deaf_session(&world), name.as_bytes()).1.chains;
    assert!(propose("before")[0] < of_three);
    for (copies, expected) in [(2, of_two), (3, of_three)] {
        set(&format!("copies={copies}")).unwrap();
        assert!(client.layout_text(&who, InodeId::ROOT).unwrap().contains(&format!(" copies={copies} ")));
        assert_eq!(propose(&format!("f{copies}")).as_slice(), [expected]);
    }
    // What is set besides leaves the copies as they are.
    set("stripe_count=2").unwrap();
    assert_eq!(propose("striped").as_slice(), [of_three], "there is one head");
    set("copies=1").unwrap();
    let chains = propose("once");
    assert!(chains.len() == 2 && chains.iter().all(|chain| *chain < ChainId(3)), "{chains:?}");
}
