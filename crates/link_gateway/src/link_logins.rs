//! Which carrier of a link has logged in last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use link::wire::handshake::LinkId;

/// The logins of the carriers of all links. A client id has one connection to the broker: a carrier that logs in ends the
/// connection of the carrier before it. So does a carrier that is broken already, and whose login takes longer than that of the
/// next one. The peer must then connect again, instead of giving up because of another client with its client id.
#[derive(Default)]
pub(crate) struct LinkLogins {
    links: Mutex<HashMap<LinkId, CarrierLogins>>,
}

struct CarrierLogins {
    carriers: usize,
    last_login: u64,
}

/// The login of a carrier, from its begin to the end of the carrier.
pub(crate) struct LinkLogin {
    logins: Arc<LinkLogins>,
    link: LinkId,
    number: u64,
    /// The link had another carrier when this one began to log in.
    has_met_others: bool,
}

impl LinkLogins {
    /// A carrier of this link logs in from now on.
    pub(crate) fn begin(self: &Arc<Self>, link: LinkId) -> LinkLogin {
        let mut links = self.links();
        let count = links.entry(link).or_insert(CarrierLogins {
            carriers: 0,
            last_login: 0,
        });
        let has_met_others = count.carriers > 0;
        count.carriers += 1;
        count.last_login += 1;
        LinkLogin {
            logins: self.clone(),
            link,
            number: count.last_login,
            has_met_others,
        }
    }

    fn links(&self) -> MutexGuard<'_, HashMap<LinkId, CarrierLogins>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkLogin {
    /// Whether another carrier of the link may have ended the connection of this one: one that was there when this one began to log
    /// in, or that has begun since. It may be gone already.
    pub(crate) fn is_contested(&self) -> bool {
        let links = self.logins.links();
        let is_last = |count: &CarrierLogins| count.last_login == self.number;
        self.has_met_others || !links.get(&self.link).is_some_and(is_last)
    }
}

impl Drop for LinkLogin {
    fn drop(&mut self) {
        let mut links = self.logins.links();
        if let Some(count) = links.get_mut(&self.link) {
            count.carriers -= 1;
            if count.carriers == 0 {
                links.remove(&self.link);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_contested_by_others_of_its_link_only() {
        let logins = Arc::new(LinkLogins::default());
        let first = logins.begin(LinkId([1; 16]));
        let other = logins.begin(LinkId([2; 16]));
        assert!(!first.is_contested() && !other.is_contested());
        let second = logins.begin(LinkId([1; 16]));
        assert!(first.is_contested() && second.is_contested());
        // What one of them has ended may be noticed after its own end.
        drop(first);
        assert!(second.is_contested() && !other.is_contested());
        drop(second);
        assert!(!logins.begin(LinkId([1; 16])).is_contested());
    }
}
