//! Sends a file, which continues after kills of either end, and messages with a journal:
//!
//! - `cargo run -p tidegate-link --example transfer -- serve 127.0.0.1:7600 DIRECTORY`
//! - `cargo run -p tidegate-link --example transfer -- send 127.0.0.1:7600 FILE`
//! - `cargo run -p tidegate-link --example transfer -- publish 127.0.0.1:7600 JOURNAL TEXT`

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use content::{ContentHasher, DigestAlgorithm};
use link::config::LinkConfig;
use link::core::NewStream;
use link::durable::{FileJournal, PartialFile};
use link::error_code::ErrorCode;
use link::net::{
    ConnectOptions, IncomingStream, Link, LinkDecision, LinkListener, connect, connect_with_journal,
};
use link::priority::Priority;
use link::wire::control::TransferId;
use link::wire::handshake::LinkId;
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Content that is written before it is synced and acknowledged.
const SYNC_BYTES: u64 = 1 << 20;
/// Content of one write.
const CHUNK_BYTES: usize = 64 << 10;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address, directory] => serve(address, directory.into()).await,
        ["send", address, file] => send(address.to_owned(), Path::new(file)).await,
        ["publish", address, journal, text] => {
            publish(address.to_owned(), Path::new(journal), text.to_owned()).await
        }
        _ => Err("usage: transfer serve ADDRESS DIRECTORY | send ADDRESS FILE | publish ADDRESS JOURNAL TEXT".into()),
    }
}

/// A different text with each call is enough for an example; applications use random bytes.
fn unique_id(text: &str) -> [u8; 16] {
    let digest = ContentHasher::digest(DigestAlgorithm::Blake3, text.as_bytes());
    let mut id = [0; 16];
    id.copy_from_slice(&digest.bytes[..16]);
    id
}

fn new_link_id() -> LinkId {
    let time = std::time::SystemTime::now();
    LinkId(unique_id(&format!("{time:?} {}", std::process::id())))
}

async fn serve(address: &str, directory: PathBuf) -> Result<()> {
    // With a journal for each link, also messages survive a kill of this process, and are received once.
    let journals = directory.join("journals");
    let (listener, mut links) = LinkListener::with_journals(
        LinkConfig::default(),
        1000,
        Duration::from_secs(3600),
        journals,
    )?;
    tokio::spawn(async move {
        while let Some(accepted) = links.recv().await {
            let directory = directory.clone();
            tokio::spawn(async move { println!("{:?}", receive(accepted.link, &directory).await) });
        }
    });
    let socket = TcpListener::bind(address).await?;
    loop {
        let (carrier, peer) = socket.accept().await?;
        carrier.set_nodelay(true)?;
        let listener = listener.clone();
        tokio::spawn(async move {
            // Credentials are not examined here.
            let decide = |_: &_| LinkDecision::Accept {
                principal: String::new(),
            };
            println!("{peer}: {:?}", listener.serve(carrier, decide).await);
        });
    }
}

async fn receive(link: Link, directory: &Path) -> Result<()> {
    loop {
        tokio::select! {
            message = link.receive() => {
                let message = message?;
                println!("{}", String::from_utf8_lossy(&message.payload.into_bytes()));
                // It is processed, and not received again after a restart.
                link.acknowledge(message.id);
            }
            stream = link.receive_stream() => receive_file(stream?, directory).await?,
        }
    }
}

async fn receive_file(mut stream: IncomingStream, directory: &Path) -> Result<()> {
    let info = stream.info().clone();
    let name = String::from_utf8(info.metadata)?;
    // What an interrupted transfer of the same file has stored need not be sent again.
    let mut file = PartialFile::open(directory, &name, info.transfer_id, info.digest)?;
    stream.accept(file.durable());
    let mut unsynced_bytes = 0;
    let done = loop {
        match stream.read().await? {
            Ok(chunk) => {
                file.write(&chunk)?;
                unsynced_bytes += chunk.bytes.len() as u64;
            }
            Err(done) => break done,
        }
        if unsynced_bytes >= SYNC_BYTES {
            unsynced_bytes = 0;
            for range in file.sync()?.iter() {
                stream.acknowledge(range);
            }
        }
    };
    // Verifies the digest.
    match file.finish(done) {
        Ok(path) => {
            println!("received {}", path.display());
            stream.complete();
        }
        Err(error) => stream.reject(ErrorCode::DIGEST_MISMATCH, &error.to_string()),
    }
    Ok(())
}

async fn send(address: String, path: &Path) -> Result<()> {
    let content = Bytes::from(fs::read(path)?);
    let size = content.len() as u64;
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or("the path names no file")?;
    let digest = ContentHasher::digest(DigestAlgorithm::Blake3, &content);
    let link = connect(new_link_id(), ConnectOptions::default(), move || {
        TcpStream::connect(address.clone())
    });
    let stream = link
        .send_stream(NewStream {
            priority: Priority::Bulk,
            // The same for each attempt to send this file.
            transfer_id: TransferId(unique_id(&format!("{name} {:?}", digest.bytes))),
            size: Some(size),
            digest: Some(digest.algorithm),
            metadata: name.as_bytes().to_vec(),
            is_resume: true,
        })
        .await?;
    let known = stream.accepted().await?;
    println!("the peer has {} of {size} bytes", known.count());
    for (index, chunk) in content.chunks(CHUNK_BYTES).enumerate() {
        let offset = (index * CHUNK_BYTES) as u64;
        if known.covers(offset..offset + chunk.len() as u64) {
            continue;
        }
        // It waits while too much is not acknowledged.
        stream.write(offset, content.slice_ref(chunk)).await?;
        println!("acknowledged: {} bytes", stream.acknowledged_bytes());
    }
    stream.finish(size, Some(digest)).await?;
    link.shut_down(ErrorCode::NONE, "").await;
    println!("stored and verified");
    Ok(())
}

async fn publish(address: String, journal: &Path, text: String) -> Result<()> {
    fs::create_dir_all(journal)?;
    let journal = FileJournal::open(journal, new_link_id())?;
    let link = connect_with_journal(journal, ConnectOptions::default(), move || {
        TcpStream::connect(address.clone())
    });
    // It is in the journal when this returns. After a kill, another process with this journal sends it.
    link.send(Priority::Normal, Bytes::from(text)).await?;
    // Fails if the peer rejects a message.
    link.flush().await?;
    link.shut_down(ErrorCode::NONE, "").await;
    link.ended().await;
    Ok(())
}
