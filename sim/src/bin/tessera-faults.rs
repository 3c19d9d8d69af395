//! [`tessera_sim::faults`] as a process: what the demo and the engine tests put before a node.
//!
//! Usage: `tessera-faults --upstream 127.0.0.1:7421`. It prints `listening ADDRESS`. Each line on
//! its standard input orders one fault, `damage`, `gone`, `cut`, `stall` or `keep`: it prints
//! `armed` when it is ready for it and the same word again when it has happened. `release` lets
//! stalled and kept frames go on and prints `released COUNT`. It runs until its standard input
//! ends.

#![forbid(unsafe_code)]

use std::env;
use std::io;
use std::process::ExitCode;

use tessera_sim::faults::Faults;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera-faults: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let upstream = upstream().map_err(io::Error::other)?;
    let (faults, address) = Faults::start(&upstream, |fault| println!("{fault}"))?;
    println!("listening {address}");
    for line in io::stdin().lines() {
        match line?.as_str() {
            "release" => println!("released {}", faults.release()),
            order => {
                faults.order(order.parse().map_err(io::Error::other)?);
                println!("armed");
            }
        }
    }
    Ok(())
}

fn upstream() -> Result<String, &'static str> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.as_slice() {
        [name, address] if name == "--upstream" => Ok(address.clone()),
        _ => Err("usage: tessera-faults --upstream ADDRESS"),
    }
}
