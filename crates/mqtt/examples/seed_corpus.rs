//! Writes the seeds of the fuzz targets: `cargo run -p tidegate-mqtt --example seed_corpus -- fuzz/seeds`.

#[path = "../tests/seeds/mod.rs"]
mod seeds;

use std::path::Path;

fn main() -> std::io::Result<()> {
    let Some(root) = std::env::args().nth(1) else {
        eprintln!("expected the folder of the seeds, such as fuzz/seeds");
        std::process::exit(2);
    };
    let seeds = seeds::all();
    for seed in &seeds {
        let folder = Path::new(&root).join(seed.target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(&seed.name), &seed.bytes)?;
    }
    println!("{} seeds written to {root}", seeds.len());
    Ok(())
}
