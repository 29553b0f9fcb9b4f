// Pictures of messages: kept as blobs, and sent as data: URIs.

/** Formats that servers of vision models read. */
export const FORMATS = { "image/png": "PNG", "image/jpeg": "JPEG", "image/webp": "WebP", "image/gif": "GIF" };

const uris = new WeakMap();

/** A blob as a data: URI. */
export function dataUri(blob) {
  if (!uris.has(blob)) {
    uris.set(
      blob,
      new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(blob);
      }),
    );
  }
  return uris.get(blob);
}

/** A body whose pictures are replaced by what `uri` makes of them. */
async function replaced(body, uri) {
  const part = async (one) => (one.image_url?.url instanceof Blob ? { ...one, image_url: { ...one.image_url, url: await uri(one.image_url.url) } } : one);
  const message = async (one) => (Array.isArray(one.content) ? { ...one, content: await Promise.all(one.content.map(part)) } : one);
  return { ...body, messages: await Promise.all(body.messages.map(message)) };
}

/** A body as it is sent. */
export const inlined = (body) => replaced(body, dataUri);

/** A body for people: the beginning of each data: URI stands for it. */
export const abbreviated = (body) => replaced(body, (blob) => `data:${blob.type};base64,…`);

export const hasPictures = (body) => body.messages.some(({ content }) => Array.isArray(content));
