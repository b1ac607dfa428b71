//! A network between a client and a server that can be slow, stop, or break.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How bytes pass, in both directions, on connections there are and connections to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyMode {
    Pass,
    /// Each piece (what one read gives, at most 64 KiB) so much later.
    Delay(Duration),
    /// Connections are accepted and stay, nothing passes; what was sent meanwhile passes later.
    Stall,
    /// Connections are accepted and closed at once, those there are cut.
    Refuse,
}

/// Accepts on a free loopback port and passes everything on to another address. Gone when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<ProxyShared>,
}

struct ProxyShared {
    target: SocketAddr,
    state: Mutex<ProxyState>,
    changed: Condvar,
}

struct ProxyState {
    mode: ProxyMode,
    is_closed: bool,
    accepted: u64,
    passed: u64,
    open: Vec<TcpStream>,
}

impl Proxy {
    pub fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(ProxyShared {
            target,
            state: Mutex::new(ProxyState {
                mode: ProxyMode::Pass,
                is_closed: false,
                accepted: 0,
                passed: 0,
                open: Vec::new(),
            }),
            changed: Condvar::new(),
        });
        let acceptor = shared.clone();
        std::thread::spawn(move || acceptor.accept(&listener));
        Proxy { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set_mode(&self, mode: ProxyMode) {
        self.shared.lock().mode = mode;
        self.shared.changed.notify_all();
        if mode == ProxyMode::Refuse {
            self.close_connections();
        }
    }

    /// Breaks all connections there are; new ones are welcome.
    pub fn close_connections(&self) {
        for stream in self.shared.lock().open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// How many connections were accepted so far.
    pub fn accepted_count(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// How many pieces have passed so far, in both directions.
    pub fn passed_count(&self) -> u64 {
        self.shared.lock().passed
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
        self.close_connections();
        // Wakes the acceptor, which then sees that it is over.
        let _ = TcpStream::connect(self.address);
    }
}

impl ProxyShared {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            {
                let mut state = self.lock();
                if state.is_closed {
                    return;
                }
                if state.mode == ProxyMode::Refuse {
                    state.accepted += 1;
                    continue;
                }
            }
            let Ok(client) = client else { continue };
            // A server that is down: the client sees its connection closed.
            if let Ok(server) = TcpStream::connect(self.target) {
                self.forward(client, server);
            }
            // From now on, the connection is one of those that can be closed.
            self.lock().accepted += 1;
        }
    }

    fn forward(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let copies = || Ok::<_, std::io::Error>((client.try_clone()?, server.try_clone()?));
        let (Ok(there), Ok(back), Ok(open)) = (copies(), copies(), copies()) else {
            return;
        };
        self.lock().open.extend([open.0, open.1]);
        for (from, to) in [there, (back.1, back.0)] {
            let shared = self.clone();
            std::thread::spawn(move || shared.copy(from, to));
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut piece = [0; 65536];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            if !self.wait_until_open() || to.write_all(&piece[..count]).is_err() {
                break;
            }
            self.lock().passed += 1;
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// Waits as the mode demands; false: it is over.
    fn wait_until_open(&self) -> bool {
        let mut state = self.lock();
        loop {
            match state.mode {
                _ if state.is_closed => return false,
                ProxyMode::Pass => return true,
                ProxyMode::Refuse => return false,
                ProxyMode::Delay(delay) => {
                    drop(state);
                    std::thread::sleep(delay);
                    return true;
                }
                ProxyMode::Stall => {
                    state = self
                        .changed
                        .wait(state)
                        .unwrap_or_else(|poisoned| poisoned.into_inner());
                }
            }
        }
    }
}
