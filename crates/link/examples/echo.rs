//! An echo server and its client: `cargo run -p tidegate-link --example echo -- serve 127.0.0.1:7600`, and
//! `... -- send 127.0.0.1:7600 TEXT`.

use std::time::Duration;

use bytes::Bytes;
use link::config::LinkConfig;
use link::error_code::ErrorCode;
use link::net::{ConnectOptions, Link, LinkDecision, LinkError, LinkListener, connect};
use link::priority::Priority;
use link::wire::handshake::LinkId;
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => serve(address).await,
        ["send", address, text] => send(address.to_owned(), text.to_owned()).await,
        _ => Err("usage: echo serve ADDRESS | echo send ADDRESS TEXT".into()),
    }
}

async fn serve(address: &str) -> Result<()> {
    let (listener, mut links) =
        LinkListener::new(LinkConfig::default(), 1000, Duration::from_secs(60));
    tokio::spawn(async move {
        while let Some(accepted) = links.recv().await {
            tokio::spawn(async move { println!("{:?}", echo(accepted.link).await) });
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

async fn echo(link: Link) -> std::result::Result<(), LinkError> {
    loop {
        let message = link.receive().await?;
        link.send(message.id.priority, message.payload.into_bytes())
            .await?;
    }
}

async fn send(address: String, text: String) -> Result<()> {
    // A name that was never used before: the time and the process are enough for an example.
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
    let mut id = [0; 16];
    id[..8].copy_from_slice(&(time.as_nanos() as u64).to_le_bytes());
    id[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    let link = connect(LinkId(id), ConnectOptions::default(), move || {
        TcpStream::connect(address.clone())
    });
    link.send(Priority::Normal, Bytes::from(text)).await?;
    let answer = link.receive().await?.payload.into_bytes();
    println!("{}", String::from_utf8_lossy(&answer));
    link.shut_down(ErrorCode::NONE, "").await;
    Ok(())
}
