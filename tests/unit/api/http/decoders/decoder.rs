// Event stream read by the rules of the HTML standard, over a plain socket: the standard library has no HTTP client.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

fn line(reader: &mut impl BufRead) -> String {
    let mut text = String::new();
    reader.read_line(&mut text).expect("a line");
    text.trim_end().to_string()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (host, path) = arguments[1]["http://".len()..].split_once('/').expect("a path");
    let body = &arguments[2];
    let mut socket = TcpStream::connect(host).expect("a connection");
    write!(
        socket,
        "POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .expect("a request");
    let mut reader = BufReader::new(socket);
    while !line(&mut reader).is_empty() {}
    let (mut text, mut data, mut has_data) = (Vec::new(), String::new(), false);
    loop {
        let size = usize::from_str_radix(&line(&mut reader), 16).expect("the size of a chunk");
        if size == 0 {
            return;
        }
        let mut chunk = vec![0; size];
        reader.read_exact(&mut chunk).expect("a chunk");
        line(&mut reader);
        for byte in chunk {
            if byte != b'\n' {
                text.push(byte);
                continue;
            }
            let whole = String::from_utf8(std::mem::take(&mut text)).expect("UTF-8");
            if whole.is_empty() {
                if has_data {
                    println!("{data}");
                }
                data.clear();
                has_data = false;
                continue;
            }
            let (field, value) = whole.split_once(':').unwrap_or((&whole, ""));
            if field == "data" {
                if has_data {
                    data.push('\n');
                }
                data.push_str(value.strip_prefix(' ').unwrap_or(value));
                has_data = true;
            }
        }
    }
}
