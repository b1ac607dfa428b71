//! Routes of keys to the servers of a cluster. The usual cluster client repeats each command separately and so loses the order;
//! here a redirected command takes the following ones along.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value as Answer};

use super::connections::{ServerAddress, SharedConnections};
use super::errors::failure;
use crate::connector::ConnectorError;

/// Number of slots of every cluster.
const SLOTS: usize = 16_384;
/// Time-out for a reply with the slot map; a server may hang.
const SLOT_MAP_TIMEOUT: Duration = Duration::from_secs(5);

/// The slot map last received.
pub(super) struct SlotMap {
    nodes: Vec<ServerAddress>,
    /// Index of each slot's node; empty if a single server has all slots.
    owners: Vec<Option<u16>>,
}

impl SlotMap {
    pub(super) fn nodes(&self) -> &[ServerAddress] {
        &self.nodes
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&ServerAddress> {
        match self.owners.as_slice() {
            [] => self.nodes.first(),
            owners => {
                let node = (*owners.get(usize::from(slot))?)?;
                self.nodes.get(usize::from(node))
            }
        }
    }
}

/// Finds the server of a slot.
pub(super) struct SlotRoutes {
    /// Initial servers of a cluster.
    seeds: Option<Vec<ServerAddress>>,
    known: Mutex<SlotRoutesState>,
    /// Serialises queries of the slot map.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct SlotRoutesState {
    map: Option<Arc<SlotMap>>,
    is_outdated: bool,
    /// The server to query first; advances each time, because the previous one may be hanging.
    next_seed: usize,
}

impl SlotRoutes {
    pub(super) fn single_server(server: ServerAddress) -> Self {
        let map = SlotMap {
            nodes: vec![server],
            owners: Vec::new(),
        };
        Self {
            seeds: None,
            known: Mutex::new(SlotRoutesState {
                map: Some(Arc::new(map)),
                ..SlotRoutesState::default()
            }),
            asking: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn cluster(seeds: Vec<ServerAddress>) -> Self {
        Self {
            seeds: Some(seeds),
            known: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.seeds.is_some()
    }

    /// Marks the slot map as outdated after a server did not answer or reported a redirection; the next user queries it again.
    pub(super) fn mark_outdated(&self) {
        self.known().is_outdated = self.is_cluster();
    }

    fn known(&self) -> std::sync::MutexGuard<'_, SlotRoutesState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current_map(&self) -> Option<Arc<SlotMap>> {
        let known = self.known();
        known.map.clone().filter(|_| !known.is_outdated)
    }

    pub(super) async fn map(
        &self,
        lines: &SharedConnections,
    ) -> Result<Arc<SlotMap>, ConnectorError> {
        if let Some(map) = self.current_map() {
            return Ok(map);
        }
        let _asking = self.asking.lock().await;
        if let Some(map) = self.current_map() {
            return Ok(map);
        }
        let mut why = ConnectorError::transient("no server of the cluster is known");
        for address in self.servers_to_ask() {
            let within = SLOT_MAP_TIMEOUT + lines.connect_timeout();
            match tokio::time::timeout(within, request_slot_map(lines, &address)).await {
                Ok(Ok(map)) => {
                    lines.retain_servers(map.nodes());
                    let map = Arc::new(map);
                    let mut known = self.known();
                    known.map = Some(map.clone());
                    known.is_outdated = false;
                    return Ok(map);
                }
                Ok(Err(failure)) => why = failure,
                Err(_) => {
                    let (host, port) = &address;
                    why = ConnectorError::transient(format!("{host}:{port} does not answer"));
                }
            }
        }
        Err(why)
    }

    /// The servers of the last map, then those of the settings.
    fn servers_to_ask(&self) -> Vec<ServerAddress> {
        let mut known = self.known();
        known.next_seed = known.next_seed.wrapping_add(1);
        let mut all: Vec<ServerAddress> = Vec::new();
        if let Some(map) = &known.map {
            all.extend(map.nodes.iter().cloned());
            let turn = known.next_seed % all.len().max(1);
            all.rotate_left(turn);
        }
        for seed in self.seeds.iter().flatten() {
            if !all.contains(seed) {
                all.push(seed.clone());
            }
        }
        all
    }
}

async fn request_slot_map(
    lines: &SharedConnections,
    address: &ServerAddress,
) -> Result<SlotMap, ConnectorError> {
    let mut command = Cmd::new();
    command.arg("CLUSTER").arg("SLOTS");
    let answer = lines.request(address, &command).await.map_err(failure)?;
    parse_slot_map(&answer, address, lines.has_tls()).ok_or_else(|| {
        let (host, port) = address;
        ConnectorError::transient(format!(
            "{host}:{port} does not report which server has which slots"
        ))
    })
}

/// Parses a reply to `CLUSTER SLOTS`: `[[first, last, [host, port, id, [name, value, ...]], replicas...], ...]`.
fn parse_slot_map(answer: &Answer, contacted: &ServerAddress, has_tls: bool) -> Option<SlotMap> {
    let mut map = SlotMap {
        nodes: Vec::new(),
        owners: vec![None; SLOTS],
    };
    for range in items(answer)? {
        let [first, last, master, ..] = items(range)? else {
            return None;
        };
        let (first, last) = (number(first)?, number(last)?);
        let address = address(items(master)?, contacted, has_tls)?;
        let known = map.nodes.iter().position(|known| *known == address);
        let node = known.unwrap_or_else(|| {
            map.nodes.push(address);
            map.nodes.len() - 1
        });
        let node = u16::try_from(node).ok()?;
        map.owners.get_mut(first..=last)?.fill(Some(node));
    }
    Some(map)
}

fn address(node: &[Answer], contacted: &ServerAddress, has_tls: bool) -> Option<ServerAddress> {
    let [host, port, more @ ..] = node else {
        return None;
    };
    let mut host = text(host).filter(|host| !host.is_empty() && *host != "?");
    // A certificate contains a host name rather than an address.
    if let (true, Some(about)) = (has_tls, more.get(1).and_then(items)) {
        let mut pairs = about.chunks_exact(2);
        let name = pairs.find(|pair| text(&pair[0]) == Some("hostname"));
        host = name.and_then(|pair| text(&pair[1])).or(host);
    }
    let host = host.unwrap_or(&contacted.0).to_owned();
    Some((host, u16::try_from(number(port)?).ok()?))
}

fn items(answer: &Answer) -> Option<&[Answer]> {
    match answer {
        Answer::Array(items) => Some(items),
        _ => None,
    }
}

fn number(answer: &Answer) -> Option<usize> {
    match answer {
        Answer::Int(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

fn text(answer: &Answer) -> Option<&str> {
    match answer {
        Answer::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Answer::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Index of the first key among the words of a command; `None` if it has no key and any server may run it.
pub(super) fn first_key_index(command: &str) -> Option<usize> {
    let is = |names: &[&str]| names.iter().any(|name| command.eq_ignore_ascii_case(name));
    if is(&[
        "DBSIZE", "ECHO", "FLUSHALL", "FLUSHDB", "FUNCTION", "INFO", "PING", "PUBLISH", "SCRIPT",
        "TIME", "WAIT",
    ]) {
        return None;
    }
    let place = match () {
        () if is(&[
            "EVAL",
            "EVALSHA",
            "EVAL_RO",
            "EVALSHA_RO",
            "FCALL",
            "FCALL_RO",
        ]) =>
        {
            3
        }
        () if is(&["BITOP", "MEMORY", "OBJECT", "XGROUP", "XINFO"]) => 2,
        () => 1,
    };
    Some(place)
}

/// The slot of a key: the hash of the text in its first braces, if any, so that related keys can share a slot.
pub(super) fn key_slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tag.unwrap_or(key)) % SLOTS as u16
}

/// CRC-16/XMODEM: polynomial 0x1021, initial value 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum: u16, byte| {
        let mut sum = sum ^ u16::from(*byte) << 8;
        for _ in 0..8 {
            let carry = sum & 0x8000 != 0;
            sum <<= 1;
            if carry {
                sum ^= 0x1021;
            }
        }
        sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_clusters_give_them() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // Values from CLUSTER KEYSLOT.
        assert_eq!(key_slot(b"foo"), 12_182);
        assert_eq!(key_slot(b"{foo}.bar"), 12_182);
        assert_eq!(key_slot(b"a{foo}{bar}"), 12_182);
        assert_ne!(key_slot(b"{}foo"), key_slot(b"{}bar"));
        assert_eq!(key_slot(b""), 0);
    }

    #[test]
    fn the_map_is_read() {
        let text = |text: &str| Answer::BulkString(text.as_bytes().to_vec());
        let node = |host: &str, name: &str| {
            let about = Answer::Array(vec![text("hostname"), text(name)]);
            Answer::Array(vec![text(host), Answer::Int(7001), text("id"), about])
        };
        let range =
            |first, last, node| Answer::Array(vec![Answer::Int(first), Answer::Int(last), node]);
        let answer = Answer::Array(vec![
            range(0, 8191, node("10.0.0.1", "one")),
            range(8192, 16_000, node("", "two")),
        ]);
        let contacted = ("10.0.0.2".to_owned(), 7002);
        let map = parse_slot_map(&answer, &contacted, false).unwrap();
        let one = ("10.0.0.1".to_owned(), 7001);
        assert_eq!(map.owner(8191), Some(&one));
        assert_eq!(map.owner(8192), Some(&("10.0.0.2".to_owned(), 7001)));
        assert_eq!(map.owner(16_001), None);
        let secure = parse_slot_map(&answer, &contacted, true).unwrap();
        assert_eq!(secure.owner(0), Some(&("one".to_owned(), 7001)));
        let wrong = Answer::Array(vec![range(0, 70_000, node("h", "n"))]);
        assert!(parse_slot_map(&wrong, &contacted, false).is_none());
    }
}
