//! What every proxy between two workers is made of: frames that are read whole, and two ways that
//! end together.

use std::io;

use tessera_proto::{FRAME_HEADER_BYTES, FrameHeader};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;

/// The next frame: its header, and all of its bytes.
pub(crate) async fn next_frame(from: &mut OwnedReadHalf) -> io::Result<(FrameHeader, Vec<u8>)> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    from.read_exact(&mut frame).await?;
    let header = FrameHeader::decode(frame.first_chunk().unwrap()).map_err(io::Error::other)?;
    let more = u64::from(header.body_bytes) + header.payload_bytes;
    frame.resize(FRAME_HEADER_BYTES + usize::try_from(more).unwrap(), 0);
    from.read_exact(&mut frame[FRAME_HEADER_BYTES..]).await?;
    Ok((header, frame))
}

/// Passes both ways until one ends: an end of one is an end of both, as on a socket that is closed.
pub(crate) async fn both_ways(
    there: impl Future<Output = io::Result<()>> + Send + 'static,
    back: impl Future<Output = io::Result<()>> + Send + 'static,
) {
    let (there, back) = (tokio::spawn(there), tokio::spawn(back));
    let (there_end, back_end) = (there.abort_handle(), back.abort_handle());
    tokio::select! {
        _ = there => back_end.abort(),
        _ = back => there_end.abort(),
    }
}
