// The AI SDK's own transport and reader, as `useChat` uses them: a message is sent, and each line on stdout is the
// message as it stands, with its parts. The last one is the whole answer.
//   node ai_sdk.mjs URL TEXT
import { DefaultChatTransport, readUIMessageStream } from "ai";

const [url, text] = process.argv.slice(2);
const transport = new DefaultChatTransport({ api: `${url}/agent/stream?protocol=ai-sdk` });
const messages = [{ id: "m1", role: "user", parts: [{ type: "text", text }] }];
const stream = await transport.sendMessages({ chatId: "c1", trigger: "submit-message", messageId: undefined, messages, abortSignal: undefined });
const failed = (problem) => console.log(JSON.stringify({ error: String(problem) }));
for await (const message of readUIMessageStream({ stream, onError: failed, terminateOnError: false })) console.log(JSON.stringify(message));
