//! The streams of one connection and its shard: tasks that move packets between them.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use mqtt::frame_len;
use quinn::{Connection, ReadError, RecvStream, SendStream, VarInt, WriteError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use super::control_packets::ControlPackets;
use super::multiplexer::{Destination, StreamMultiplexer};
use super::shared::{MAX_STREAMS, QuicShared, WINDOW};
use super::stream_number::{CONTROL_STREAM, StreamNumber};

/// Bytes read at once, in either direction.
const CHUNK_BYTES: usize = 64 << 10;
/// How long the last bytes may take to reach the other end.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// How long a client may leave a data stream unread while messages for it wait. They delay those of other streams.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Inputs of data streams that wait for the shard.
const WAITING_INPUTS: usize = 4;
/// A slow packet may take a second longer for each of these bytes, as on other listeners.
const SLOW_PACKET_BYTES_PER_S: u64 = 1024;
/// The application error codes of a closed stream.
const STREAM_CLOSED: VarInt = VarInt::from_u32(0);
const STREAM_VIOLATION: VarInt = VarInt::from_u32(0x82);

/// What the tasks of a connection share.
pub(super) struct ClientStreams {
    pub(super) shared: Arc<QuicShared>,
    pub(super) connection: Connection,
    multiplexer: Mutex<StreamMultiplexer>,
    max_packet_size: u32,
}

/// From the receiving to the sending task.
pub(super) enum SendCommand {
    Open(StreamNumber, SendStream),
    /// Everything has been sent.
    Finish(StreamNumber),
    Reset(StreamNumber, VarInt),
}

/// From the task of a data stream to the receiving task.
pub(super) enum StreamInput {
    /// Complete packets.
    Packets(StreamNumber, Vec<u8>),
    /// The client has ended the stream.
    Finished(StreamNumber),
    /// The client has reset the stream, or has sent something that is not valid.
    Failed(StreamNumber, VarInt),
}

impl ClientStreams {
    pub(super) fn new(shared: Arc<QuicShared>, connection: Connection) -> Self {
        let max_topic_bytes = shared.node.limits.max_topic_bytes;
        let of_node = shared.node.limits.max_packet_size;
        let max_packet_size = match shared.context.config.max_packet_size {
            0 => of_node,
            own => own.min(of_node),
        };
        Self {
            shared,
            connection,
            multiplexer: Mutex::new(StreamMultiplexer::new(max_packet_size, max_topic_bytes)),
            max_packet_size,
        }
    }

    fn multiplexer(&self) -> MutexGuard<'_, StreamMultiplexer> {
        self.multiplexer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves packets from the client to its shard. Ends when the client has ended the control stream or is lost, or the
    /// shard has closed the connection.
    pub(super) async fn receive(
        self: Arc<Self>,
        mut control: RecvStream,
        mut to_shard: OwnedWriteHalf,
        commands: UnboundedSender<SendCommand>,
        mut stopped: UnboundedReceiver<StreamNumber>,
    ) {
        let (inputs, mut input) = tokio::sync::mpsc::channel(WAITING_INPUTS);
        // Ends the tasks of data streams with this one.
        let mut readers = JoinSet::new();
        let mut reader_of: HashMap<StreamNumber, AbortHandle> = HashMap::new();
        let max_connect = self.shared.node.limits.max_connect_bytes;
        let mut packets = ControlPackets::new(self.max_packet_size, max_connect);
        let mut out = Vec::new();
        loop {
            out.clear();
            // A data stream that has ended, and the code to reset it with.
            let mut ended = None;
            tokio::select! {
                chunk = control.read_chunk(CHUNK_BYTES, true) => {
                    let Ok(Some(chunk)) = chunk else { break };
                    packets.receive(&chunk.bytes, &mut self.multiplexer(), &mut out);
                }
                () = packets.overdue(self.packet_timeout()) => break,
                opened = self.connection.accept_bi() => {
                    let Ok((send, receive)) = opened else { break };
                    let number = self.multiplexer().open_stream();
                    // The receiver is dropped after this task.
                    let _ = commands.send(SendCommand::Open(number, send));
                    let read = self.clone().read_data_stream(number, receive, inputs.clone());
                    reader_of.insert(number, readers.spawn(read));
                }
                // A packet of the control stream that is passed on in parts is completed first.
                arrived = input.recv(), if packets.is_at_boundary() => match arrived {
                    Some(StreamInput::Packets(stream, bytes)) => {
                        let received = self.multiplexer().receive(stream, &bytes, &mut out);
                        if let Err(violation) = received {
                            tracing::debug!(stream, error = violation.0, "invalid packet; stream closed");
                            ended = Some((stream, Some(STREAM_VIOLATION)));
                        }
                    }
                    Some(StreamInput::Finished(stream)) => ended = Some((stream, None)),
                    Some(StreamInput::Failed(stream, code)) => ended = Some((stream, Some(code))),
                    None => {}
                },
                Some(stream) = stopped.recv() => ended = Some((stream, None)),
                _ = readers.join_next(), if !readers.is_empty() => {}
            }
            if let Some((stream, code)) = ended {
                // The end of its task stops the stream, if the client has not ended it.
                if let Some(reader) = reader_of.remove(&stream) {
                    reader.abort();
                }
                if let Some(code) = code {
                    let _ = commands.send(SendCommand::Reset(stream, code));
                }
                self.close_stream(stream, &mut out, &commands);
            }
            if to_shard.write_all(&out).await.is_err() {
                return;
            }
        }
        out.clear();
        if packets.is_at_boundary() {
            self.multiplexer().close_connection(&mut out);
        }
        let _ = to_shard.write_all(&out).await;
    }

    fn close_stream(
        &self,
        stream: StreamNumber,
        out: &mut Vec<u8>,
        commands: &UnboundedSender<SendCommand>,
    ) {
        let mut multiplexer = self.multiplexer();
        multiplexer.close_stream(stream, out);
        for finished in multiplexer.take_finished() {
            let _ = commands.send(SendCommand::Finish(finished));
        }
    }

    fn packet_timeout(&self) -> Duration {
        Duration::from_secs(self.shared.node.limits.packet_timeout_s.into())
    }

    /// Reads a data stream and passes on its complete packets.
    async fn read_data_stream(
        self: Arc<Self>,
        number: StreamNumber,
        mut stream: RecvStream,
        inputs: Sender<StreamInput>,
    ) {
        let mut partial = PartialPacket::new(&self.shared);
        let last = loop {
            let chunk = match partial.deadline(self.packet_timeout()) {
                None => stream.read_chunk(CHUNK_BYTES, true).await,
                Some(deadline) => {
                    match timeout_at(deadline, stream.read_chunk(CHUNK_BYTES, true)).await {
                        Ok(chunk) => chunk,
                        Err(_) => break StreamInput::Failed(number, STREAM_VIOLATION),
                    }
                }
            };
            let chunk: Bytes = match chunk {
                Ok(Some(chunk)) => chunk.bytes,
                Ok(None) => break StreamInput::Finished(number),
                Err(ReadError::Reset(_)) => break StreamInput::Failed(number, STREAM_CLOSED),
                // The connection is lost, which does not end the subscriptions of the stream.
                Err(_) => return,
            };
            match partial.receive(&chunk, self.max_packet_size) {
                Ok(packets) if packets.is_empty() => {}
                Ok(packets) => {
                    let packets = StreamInput::Packets(number, packets);
                    if inputs.send(packets).await.is_err() {
                        return;
                    }
                    partial.count_partial();
                }
                Err(()) => break StreamInput::Failed(number, STREAM_VIOLATION),
            }
        };
        if let StreamInput::Failed(_, code) = last {
            // It fails if the client has reset the stream.
            let _ = stream.stop(code);
        }
        // The receiver may have ended with the connection.
        let _ = inputs.send(last).await;
    }

    /// Moves packets from the shard to the client. Ends when the shard has closed the connection and the client has
    /// received everything, or cannot receive it.
    pub(super) async fn send(
        self: Arc<Self>,
        mut control: SendStream,
        mut from_shard: OwnedReadHalf,
        mut commands: UnboundedReceiver<SendCommand>,
        stopped: UnboundedSender<StreamNumber>,
    ) {
        let mut data_streams: HashMap<StreamNumber, SendStream> = HashMap::new();
        let mut buffer = Vec::new();
        loop {
            buffer.reserve(CHUNK_BYTES);
            tokio::select! {
                // A stream is known before packets for it.
                biased;
                Some(command) = commands.recv() => execute(command, &mut data_streams),
                read = from_shard.read_buf(&mut buffer) => {
                    let Ok(1..) = read else { break };
                    let (outputs, finished) = self.take_outputs(&mut buffer);
                    // A stream may have been opened since the packets for it were caused.
                    while let Ok(command) = commands.try_recv() {
                        execute(command, &mut data_streams);
                    }
                    for (stream, bytes) in outputs {
                        if stream == CONTROL_STREAM {
                            if control.write_all(&bytes).await.is_err() {
                                return;
                            }
                            continue;
                        }
                        let Some(send) = data_streams.get_mut(&stream) else { continue };
                        match timeout(STALL_TIMEOUT, send.write_all(&bytes)).await {
                            Ok(Ok(())) => continue,
                            Ok(Err(WriteError::ConnectionLost(_))) => return,
                            // The client has stopped the stream, or does not read it.
                            Ok(Err(_)) | Err(_) => {}
                        }
                        execute(SendCommand::Reset(stream, STREAM_CLOSED), &mut data_streams);
                        let _ = stopped.send(stream);
                    }
                    for stream in finished {
                        execute(SendCommand::Finish(stream), &mut data_streams);
                    }
                }
            }
        }
        for mut send in data_streams.into_values() {
            let _ = send.finish();
        }
        if control.finish().is_ok() {
            let _ = timeout(LINGER, control.stopped()).await;
        }
    }

    /// Takes the complete packets of the shard from `buffer`: the bytes for each stream, in their order, and the
    /// streams that are then complete.
    fn take_outputs(
        &self,
        buffer: &mut Vec<u8>,
    ) -> (Vec<(StreamNumber, Vec<u8>)>, Vec<StreamNumber>) {
        let mut outputs: Vec<(StreamNumber, Vec<u8>)> = Vec::new();
        let mut multiplexer = self.multiplexer();
        let was_connected = multiplexer.is_connected();
        let mut bytes = Vec::new();
        let mut at = 0;
        while let Ok(Some(len)) = frame_len(&buffer[at..])
            && let Some(packet) = buffer.get_mut(at..at + len)
        {
            at += len;
            bytes.clear();
            if let Destination::Stream(stream) = multiplexer.send(packet, &mut bytes) {
                match outputs.last_mut() {
                    Some((last, output)) if *last == stream => output.extend_from_slice(&bytes),
                    _ => outputs.push((stream, std::mem::take(&mut bytes))),
                }
            }
        }
        buffer.drain(..at);
        if multiplexer.is_connected() && !was_connected {
            self.connection.set_receive_window(VarInt::from_u32(WINDOW));
            self.connection
                .set_max_concurrent_bi_streams(VarInt::from_u32(MAX_STREAMS));
        }
        (outputs, multiplexer.take_finished())
    }
}

fn execute(command: SendCommand, data_streams: &mut HashMap<StreamNumber, SendStream>) {
    match command {
        SendCommand::Open(stream, send) => drop(data_streams.insert(stream, send)),
        SendCommand::Finish(stream) => {
            if let Some(mut send) = data_streams.remove(&stream) {
                // It fails if the client has stopped the stream.
                let _ = send.finish();
            }
        }
        SendCommand::Reset(stream, code) => {
            if let Some(mut send) = data_streams.remove(&stream) {
                let _ = send.reset(code);
            }
        }
    }
}

/// The beginning of a packet of a data stream. Its bytes count towards those of its listener.
struct PartialPacket {
    shared: Arc<QuicShared>,
    bytes: Vec<u8>,
    counted: u64,
    /// When its first byte arrived.
    since: Instant,
}

impl PartialPacket {
    fn new(shared: &Arc<QuicShared>) -> Self {
        Self {
            shared: shared.clone(),
            bytes: Vec::new(),
            counted: 0,
            since: Instant::now(),
        }
    }

    /// When it has to be complete. `None`: there is none.
    fn deadline(&self, limit: Duration) -> Option<Instant> {
        let extra = Duration::from_secs(self.bytes.len() as u64 / SLOW_PACKET_BYTES_PER_S);
        (!self.bytes.is_empty()).then(|| self.since + limit + extra)
    }

    /// Returns the packets that `chunk` completes. An error: a header is not valid, or there are too many bytes of
    /// incomplete packets.
    fn receive(&mut self, chunk: &[u8], max_packet_size: u32) -> Result<Vec<u8>, ()> {
        if self.bytes.is_empty() {
            self.since = Instant::now();
        }
        self.bytes.extend_from_slice(chunk);
        let mut complete = 0;
        loop {
            match frame_len(&self.bytes[complete..]) {
                Ok(Some(len)) if len > max_packet_size as usize => return Err(()),
                Ok(Some(len)) if complete + len <= self.bytes.len() => complete += len,
                Ok(_) => break,
                Err(_) => return Err(()),
            }
        }
        let rest = self.bytes.split_off(complete);
        let packets = std::mem::replace(&mut self.bytes, rest);
        if complete > 0 {
            self.since = Instant::now();
        }
        // Complete packets count until the receiving task has room for them.
        self.count(packets.len() + self.bytes.len())?;
        Ok(packets)
    }

    /// The complete packets have been passed on.
    fn count_partial(&mut self) {
        // Fewer bytes are never too many.
        let _ = self.count(self.bytes.len());
    }

    fn count(&mut self, bytes: usize) -> Result<(), ()> {
        let now = bytes as u64;
        let partial = &self.shared.partial_bytes;
        let before = std::mem::replace(&mut self.counted, now);
        partial.fetch_add(now.wrapping_sub(before), Relaxed);
        match now > before && partial.load(Relaxed) > self.shared.max_partial_bytes() {
            true => Err(()),
            false => Ok(()),
        }
    }
}

impl Drop for PartialPacket {
    fn drop(&mut self) {
        self.shared.partial_bytes.fetch_sub(self.counted, Relaxed);
    }
}
