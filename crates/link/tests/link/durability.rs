//! Both ends of a link with journals, killed at random moments: every accepted message is processed once.

use std::collections::HashMap;
use std::path::Path;

use crate::support::{RandomChoices, Simulation, content, open_locked};
use link::config::{AckPolicy, LinkConfig};
use link::core::{LinkCore, LinkEvent};
use link::durable::{FileJournal, Journal as _};
use link::message::MessageId;
use link::priority::Priority;
use link::wire::handshake::LinkId;
use proptest::prelude::*;

const ID: LinkId = LinkId([7; 16]);

fn config() -> LinkConfig {
    LinkConfig {
        ack_policy: AckPolicy::OnConfirmation,
        ..LinkConfig::default()
    }
}

fn restart(dir: &Path) -> (LinkCore, FileJournal, Vec<(MessageId, bytes::Bytes)>) {
    let journal = open_locked(|| FileJournal::open(dir, ID));
    let content = journal.content();
    let mut core = LinkCore::new(content.link_id, config());
    core.restore(content.state);
    (core, journal, content.unprocessed)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn kills_of_either_end_lose_and_repeat_nothing(seed in 1u64..u64::MAX, kill_every in 4u64..40) {
        let mut choices = RandomChoices(seed);
        let (client_dir, server_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut simulation = Simulation::new(config());
        let (core, mut client, _) = restart(client_dir.path());
        simulation.client.core = core;
        let (core, mut server, mut inbox) = restart(server_dir.path());
        simulation.server.core = core;
        let mut accepted = HashMap::new();
        let mut processed = HashMap::new();
        let mut steps = 0_u64;
        loop {
            steps += 1;
            prop_assert!(steps < 50_000, "the simulation does not end");
            let is_sending = accepted.len() < 60;
            // Large messages never complete under frequent kills.
            let may_kill = steps < 400;
            if !simulation.is_connected() {
                simulation.connect();
            }
            if is_sending && choices.below(2) == 0 {
                let sizes = [0, 20, 1500, 40_000, 200_000];
                let payload = content(sizes[choices.below(5) as usize], steps);
                let priority = Priority::ALL[choices.below(4) as usize];
                let id = simulation.client.core.send(priority, payload.clone()).unwrap();
                client.record_sent(id, &payload).unwrap();
                client.sync().unwrap();
                accepted.insert(id, payload);
            }
            if is_sending && choices.below(30) == 0 {
                let new = link::core::NewStream {
                    priority: Priority::Bulk,
                    transfer_id: link::wire::control::TransferId([1; 16]),
                    size: None,
                    digest: None,
                    metadata: Vec::new(),
                    is_resume: false,
                };
                let id = simulation.client.core.open_stream(new).unwrap();
                client.record_opened(id).unwrap();
                client.sync().unwrap();
                simulation.client.core.write(id, 0, content(10, 1)).unwrap();
                simulation.client.core.finish(id, 10, None).unwrap();
            }
            simulation.step(50_000);
            // The server stores messages, acknowledges them, and processes them later.
            let now = simulation.now;
            let arrived: Vec<_> = simulation
                .server
                .messages
                .drain(..)
                .map(|message| (message.id, message.payload.into_bytes()))
                .collect();
            for (id, payload) in &arrived {
                server.record_received(*id, payload).unwrap();
            }
            let is_killed_before_sync = may_kill && choices.below(kill_every) == 0;
            if !is_killed_before_sync {
                server.sync().unwrap();
                for (id, _) in &arrived {
                    simulation.server.core.acknowledge(*id, now);
                }
                inbox.extend(arrived);
            }
            for event in std::mem::take(&mut simulation.server.events) {
                if let LinkEvent::StreamOpened(info) = event {
                    simulation.server.core.reject_stream(info.id, link::error_code::ErrorCode(20_000), "");
                }
            }
            if !is_killed_before_sync && !inbox.is_empty() && choices.below(2) == 0 {
                for (id, payload) in inbox.drain(..) {
                    server.record_processed(id).unwrap();
                    let is_new = processed.insert(id, payload).is_none();
                    prop_assert!(is_new, "{id} is processed twice");
                }
                server.sync().unwrap();
            }
            for event in std::mem::take(&mut simulation.client.events) {
                if let LinkEvent::Acknowledged { priority, numbers } = event {
                    client.record_acknowledged(priority, &numbers).unwrap();
                }
            }
            if is_killed_before_sync {
                simulation.cut();
                // Records that are not synced are lost with the process.
                drop(server);
                let (core, journal, unprocessed) = restart(server_dir.path());
                simulation.server.core = core;
                simulation.server.events.clear();
                server = journal;
                inbox = unprocessed;
            }
            if may_kill && choices.below(kill_every) == 0 {
                simulation.cut();
                drop(client);
                let (core, journal, _) = restart(client_dir.path());
                simulation.client.core = core;
                simulation.client.events.clear();
                client = journal;
            }
            if !is_sending && processed.len() == accepted.len() && simulation.client.core.is_idle() {
                break;
            }
        }
        prop_assert!(simulation.violation.is_none(), "{:?}", simulation.violation);
        prop_assert!(!simulation.client.events.contains(&LinkEvent::PeerStateLost));
        for (id, payload) in accepted {
            prop_assert!(processed.get(&id) == Some(&payload), "{id}");
        }
    }
}
