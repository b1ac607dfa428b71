//! Sending: as many messages as pace, window and acknowledgements allow, in one write per publisher and turn.

use super::Worker;
use super::client::{ConnectionState, Publisher};
use super::pace::{LoadPace, SendSchedule};
use crate::client_error::ClientError;
use crate::flow_window::AckWindow;
use crate::host::now_ns;

/// Bytes of messages written at a time.
const BATCH_BYTES: usize = 256 * 1024;

impl Worker<'_> {
    /// Lets every publisher in line send what it may.
    pub(super) fn send_due(&mut self) {
        if self.schedule.is_some() {
            self.enqueue_due();
        }
        if self.queue.is_empty() {
            return;
        }
        let mut queue = std::mem::take(&mut self.queue);
        for &publisher in &queue {
            let publisher = publisher as usize;
            self.publishers[publisher].is_queued = false;
            if let Err(trouble) = self.send_publisher(publisher) {
                self.fail_connection(self.publishers[publisher].connection, &trouble);
            }
        }
        queue.clear();
        // Failing clients may have put others in line.
        queue.append(&mut self.queue);
        self.queue = queue;
    }

    /// Puts those in line whose turn has come in the schedule.
    fn enqueue_due(&mut self) {
        let Some(schedule) = self.schedule else {
            return;
        };
        let due = schedule.due_messages(now_ns());
        let turns = (due - self.due).min(self.publishers.len() as u64);
        for number in due - turns..due {
            self.enqueue(schedule.publisher_of(number));
        }
        self.due = due;
    }

    pub(super) fn enqueue_all(&mut self) {
        for publisher in 0..self.publishers.len() {
            self.enqueue(publisher);
        }
    }

    fn send_publisher(&mut self, index: usize) -> Result<(), ClientError> {
        let publisher = &mut self.publishers[index];
        let connection = &mut self.connections[publisher.connection];
        let Some(transport) = &mut connection.transport else {
            return Ok(());
        };
        if connection.state != ConnectionState::Ready {
            return Ok(());
        }
        let packet_bytes = publisher.template.packet_bytes();
        let batch = (BATCH_BYTES / packet_bytes).max(1) as u64;
        // What the socket does not take goes out on its next writable event, which puts the publisher in line again.
        while !transport.has_backlog() {
            let allowed = allowance(
                publisher,
                index,
                self.pace,
                self.schedule.as_ref(),
                self.due,
                self.is_sending,
                self.qos != mqtt::QoS::AtMostOnce,
            );
            let count = allowed.min(batch);
            let control = publisher.control.len();
            let bytes = control + count as usize * packet_bytes;
            if bytes == 0 {
                return Ok(());
            }
            if self.outbox.len() < bytes {
                self.outbox.resize(bytes, 0);
            }
            let (first, rest) = self.outbox[..bytes].split_at_mut(control);
            first.copy_from_slice(&publisher.control);
            publisher.control.clear();
            if count > 0 {
                fill(publisher, index, rest, self.schedule.as_ref());
                publisher.sent += count;
                if self.qos != mqtt::QoS::AtMostOnce {
                    publisher.acks.record_sent(count);
                }
            }
            transport.send(&self.outbox[..bytes])?;
            if allowed <= batch {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// How many messages the publisher may send now.
#[inline]
fn allowance(
    publisher: &Publisher,
    index: usize,
    pace: LoadPace,
    schedule: Option<&SendSchedule>,
    due: u64,
    is_sending: bool,
    is_acknowledged: bool,
) -> u64 {
    if !publisher.is_active {
        return 0;
    }
    let mut in_flight_limit = publisher.max_in_flight;
    let mut allowed = match (pace, schedule) {
        (LoadPace::Window(window), _) => {
            in_flight_limit = in_flight_limit.min(window);
            let ahead = publisher.sent - publisher.progress.floor();
            if is_sending {
                window.saturating_sub(ahead)
            } else {
                0
            }
        }
        (LoadPace::Stored { window, each }, _) => {
            in_flight_limit = in_flight_limit.min(window);
            if is_sending { each - publisher.sent } else { 0 }
        }
        (LoadPace::Rate { .. }, Some(schedule)) => {
            schedule.share_of(index, due).saturating_sub(publisher.sent)
        }
        (LoadPace::Rate { .. }, None) => 0,
    };
    if is_acknowledged {
        allowed = allowed.min(in_flight_limit.saturating_sub(publisher.acks.in_flight()));
    }
    allowed
}

/// Writes the next messages to `out`, stamped with the time they were due, or with now in a closed window.
#[inline]
fn fill(publisher: &Publisher, index: usize, out: &mut [u8], schedule: Option<&SendSchedule>) {
    let first = publisher.sent;
    match schedule {
        None => {
            let now = now_ns();
            let template = &publisher.template;
            template.fill(out, first, |_| now, AckWindow::id_of);
        }
        Some(schedule) => publisher.template.fill(
            out,
            first,
            |number| schedule.time_of_own(index, number),
            AckWindow::id_of,
        ),
    }
}
