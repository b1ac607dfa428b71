//! Proxies in front of a node that change what its clients get: the text messages of relay endpoints, and the answers of the API.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use super::TEXT;

/// Gets the number of a connection and a text message to it; returns the texts that the client gets instead. The first call for each
/// connection is without a message.
pub(super) type MessageChange = Arc<dyn Fn(usize, Option<String>) -> Vec<String> + Send + Sync>;
/// Gets the path of a request and the body of the answer; returns the body that the client gets.
pub(super) type AnswerChange = Arc<dyn Fn(&str, String) -> String + Send + Sync>;

/// Calls a function for each connection, on a thread of its own. The threads end with the test process.
fn accept(
    serve: impl Fn(usize, TcpStream) -> io::Result<()> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            // How a connection ends is the business of its client.
            std::thread::spawn(move || serve(number, stream));
        }
    });
    address
}

/// A proxy for the WebSocket listener at this address.
pub(super) fn relay_proxy(target: &str, change: MessageChange) -> SocketAddr {
    let target = target.to_owned();
    accept(move |number, client| {
        let node = TcpStream::connect(&target)?;
        client.set_nodelay(true)?;
        node.set_nodelay(true)?;
        let (mut from_client, mut to_node) = (client.try_clone()?, node.try_clone()?);
        std::thread::spawn(move || {
            let _ = io::copy(&mut from_client, &mut to_node);
            let _ = to_node.shutdown(Shutdown::Both);
        });
        let forwarded = forward_messages(number, BufReader::new(node), &client, &*change);
        client.shutdown(Shutdown::Both)?;
        forwarded
    })
}

fn forward_messages(
    number: usize,
    mut node: BufReader<TcpStream>,
    mut client: &TcpStream,
    change: &dyn Fn(usize, Option<String>) -> Vec<String>,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if node.read_until(b'\n', &mut head)? == 0 {
            return Ok(());
        }
    }
    client.write_all(&head)?;
    let send = |texts: Vec<String>| -> io::Result<()> {
        let frames: Vec<u8> = texts.iter().flat_map(|text| text_frame(text)).collect();
        (&mut &*client).write_all(&frames)
    };
    send(change(number, None))?;
    loop {
        let (frame, payload_at) = read_frame(&mut node)?;
        if frame[0] == TEXT {
            let text = String::from_utf8(frame[payload_at..].to_vec());
            send(change(number, Some(text.unwrap())))?;
        } else {
            (&mut &*client).write_all(&frame)?;
        }
    }
}

/// A frame without a mask, and where its payload begins.
fn read_frame(node: &mut BufReader<TcpStream>) -> io::Result<(Vec<u8>, usize)> {
    let mut frame = vec![0; 2];
    node.read_exact(&mut frame)?;
    let extended = match frame[1] {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    frame.resize(2 + extended, 0);
    node.read_exact(&mut frame[2..])?;
    let length = match extended {
        0 => u64::from(frame[1]),
        _ => frame[2..]
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
    };
    let payload_at = frame.len();
    frame.resize(payload_at + length as usize, 0);
    node.read_exact(&mut frame[payload_at..])?;
    Ok((frame, payload_at))
}

fn text_frame(text: &str) -> Vec<u8> {
    let mut frame = vec![TEXT];
    match text.len() {
        length @ 0..=125 => frame.push(length as u8),
        length @ 126..=0xffff => {
            frame.push(126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(text.as_bytes());
    frame
}

/// A proxy for the API at this address, for clients that send one request with each connection.
pub(super) fn api_proxy(target: &str, change: AnswerChange) -> SocketAddr {
    let target = target.to_owned();
    accept(move |_, mut client| {
        let mut reader = BufReader::new(client.try_clone()?);
        let (head, body) = read_message(&mut reader)?;
        let (first, fields) = head.split_once("\r\n").unwrap();
        let path = first.split(' ').nth(1).unwrap().to_owned();
        let mut node = TcpStream::connect(&target)?;
        node.write_all(format!("{first}\r\nConnection: close\r\n{fields}").as_bytes())?;
        node.write_all(&body)?;
        let (head, body) = read_message(&mut BufReader::new(node))?;
        let body = change(&path, String::from_utf8(body).unwrap());
        let is_length = |line: &&str| line.to_lowercase().starts_with("content-length:");
        let mut answer: String = (head.split_inclusive("\r\n"))
            .filter(|line| !is_length(line) && *line != "\r\n")
            .collect();
        answer += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        client.write_all(answer.as_bytes())
    })
}

/// Head and body of a request or an answer.
fn read_message(reader: &mut BufReader<TcpStream>) -> io::Result<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
            length = number.trim().parse().unwrap();
        }
        // The client may connect without a request.
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head += &line;
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((head, body))
}
