//! How often other nodes are told of changes of the same alarm.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

/// Time between two announcements of the same alarm.
const INTERVAL: Duration = Duration::from_secs(1);
/// Alarms that are remembered. Changes of further ones are announced at once.
const MAX_RECENT: usize = 65_536;

/// Alarms that were announced less than [`INTERVAL`] ago. The first change of an alarm is announced at once, and those that follow
/// it together.
#[derive(Default)]
pub(super) struct Announcements {
    recent: HashMap<Box<str>, RecentAnnouncement, RandomState>,
}

struct RecentAnnouncement {
    at: Instant,
    /// The alarm has changed since.
    is_pending: bool,
}

impl Announcements {
    /// Whether a change of an alarm is to be announced now. Otherwise [`take_due`](Self::take_due) returns the alarm later.
    pub(super) fn is_due(&mut self, id: &str, is_urgent: bool, now: Instant) -> bool {
        match self.recent.get_mut(id) {
            Some(recent) if !is_urgent && now < recent.at + INTERVAL => {
                recent.is_pending = true;
                false
            }
            Some(recent) => {
                *recent = RecentAnnouncement {
                    at: now,
                    is_pending: false,
                };
                true
            }
            None => {
                if self.recent.len() < MAX_RECENT {
                    let recent = RecentAnnouncement {
                        at: now,
                        is_pending: false,
                    };
                    self.recent.insert(id.into(), recent);
                }
                true
            }
        }
    }

    /// The alarms whose changes are to be announced now. To be called several times a second.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Box<str>> {
        let mut due = Vec::new();
        self.recent.retain(|id, recent| {
            if now < recent.at + INTERVAL {
                return true;
            }
            if recent.is_pending {
                due.push(id.clone());
                *recent = RecentAnnouncement {
                    at: now,
                    is_pending: false,
                };
                return true;
            }
            false
        });
        if self.recent.is_empty() && self.recent.capacity() > MAX_RECENT / 8 {
            self.recent = HashMap::default();
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_that_changes_all_the_time_is_announced_once_a_second() {
        let (mut announcements, start) = (Announcements::default(), Instant::now());
        let mut announced = 0;
        for tick in 0..100 {
            let now = start + Duration::from_millis(tick * 100);
            announced += usize::from(announcements.is_due("a", false, now));
            announced += announcements.take_due(now).len();
        }
        // In 9.9 s.
        assert_eq!(announced, 10);
        // The last change is not forgotten.
        let end = start + Duration::from_secs(20);
        assert_eq!(announcements.take_due(end), [Box::<str>::from("a")]);
        assert!(announcements.take_due(end + INTERVAL).is_empty());
        assert!(announcements.recent.is_empty());
    }

    #[test]
    fn what_people_do_is_announced_at_once() {
        let (mut announcements, now) = (Announcements::default(), Instant::now());
        assert!(announcements.is_due("a", false, now));
        assert!(!announcements.is_due("a", false, now));
        assert!(announcements.is_due("a", true, now));
        assert!(announcements.is_due("b", false, now));
        assert!(announcements.take_due(now + INTERVAL).is_empty());
    }

    #[test]
    fn memory_is_bounded() {
        let (mut announcements, now) = (Announcements::default(), Instant::now());
        for id in 0..=MAX_RECENT {
            assert!(announcements.is_due(&id.to_string(), false, now));
        }
        assert_eq!(announcements.recent.len(), MAX_RECENT);
        assert!(announcements.is_due(&MAX_RECENT.to_string(), false, now));
    }
}
