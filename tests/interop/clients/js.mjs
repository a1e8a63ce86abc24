// @a2a-js/sdk. Arguments: URL of the agent, and JSONRPC, HTTP+JSON or 0.3. Speaks as lines.py says.
import { createInterface } from 'node:readline';
import { randomUUID } from 'node:crypto';
import { Role, TaskState } from '@a2a-js/sdk';
import { Client, ClientFactory, JsonRpcTransportFactory, RestTransportFactory } from '@a2a-js/sdk/client';
import { LegacyJsonRpcTransport } from '@a2a-js/sdk/compat/v0_3/client';

const [url, dialect] = process.argv.slice(2);
const say = (thing) => process.stdout.write(JSON.stringify(thing) + '\n');
const textOf = (parts) => parts.map((part) => (part.content?.$case === 'text' ? part.content.value : '')).join('');
const stateOf = (status) =>
  TaskState[status.state].replace('TASK_STATE_', '').toLowerCase().replace('_', '-');
const saysOf = (status) => (status.message ? textOf(status.message.parts) : '');

const EVERY = { tenant: '', status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: '', statusTimestampAfter: undefined };

const ofTask = (task) => ({
  kind: 'task',
  task: task.id,
  context: task.contextId,
  state: stateOf(task.status),
  text: task.artifacts.map((artifact) => textOf(artifact.parts)).join(''),
  says: saysOf(task.status),
  history: task.history.length,
});

function ofEvent({ payload: { $case, value } }) {
  if ($case === 'task') return ofTask(value);
  if ($case === 'message') return { kind: 'message', text: textOf(value.parts), context: value.contextId };
  if ($case === 'artifactUpdate')
    return { kind: 'artifact', task: value.taskId, text: textOf(value.artifact.parts), append: value.append };
  return { kind: 'status', task: value.taskId, state: stateOf(value.status), says: saysOf(value.status) };
}

const notificationsOf = (asked) =>
  asked.push && {
    tenant: '',
    id: '',
    taskId: asked.task ?? '',
    url: asked.push,
    token: asked.token,
    authentication: { scheme: 'Bearer', credentials: asked.credentials },
  };

const requestOf = (asked) => ({
  tenant: '',
  metadata: undefined,
  message: {
    messageId: randomUUID(),
    role: Role.ROLE_USER,
    parts: [{ content: { $case: 'text', value: asked.text }, metadata: undefined, filename: '', mediaType: '' }],
    taskId: asked.task ?? '',
    contextId: asked.context ?? '',
    extensions: [],
    referenceTaskIds: [],
    metadata: undefined,
  },
  configuration: {
    acceptedOutputModes: [],
    returnImmediately: asked.do === 'start',
    taskPushNotificationConfig: notificationsOf(asked),
  },
});

async function connect() {
  const preferredTransports = dialect === '0.3' ? [] : [dialect];
  const transports = [new JsonRpcTransportFactory(), new RestTransportFactory()];
  const factory = new ClientFactory({ transports, preferredTransports });
  if (dialect !== '0.3') return factory.createFromUrl(url);
  const card = await (await factory.createFromUrl(url)).getAgentCard();
  const old = card.supportedInterfaces.find((each) => each.protocolVersion.startsWith('0.3'));
  return new Client(new LegacyJsonRpcTransport({ endpoint: old.url }), card);
}

async function* verbs(client, asked) {
  switch (asked.do) {
    case 'get':
      return yield ofTask(await client.getTask({ tenant: '', id: asked.task }));
    case 'list':
      for (const task of (await client.listTasks({ ...EVERY, contextId: asked.context })).tasks) yield ofTask(task);
      return;
    case 'cancel':
      return yield ofTask(await client.cancelTask({ tenant: '', id: asked.task, metadata: undefined }));
    case 'watch':
      for await (const event of client.resubscribeTask({ tenant: '', id: asked.task })) yield ofEvent(event);
      return;
    case 'stream':
      for await (const event of client.sendMessageStream(requestOf(asked))) yield ofEvent(event);
      return;
    default: {
      const result = await client.sendMessage(requestOf(asked));
      const isTask = 'status' in result;
      yield isTask ? ofTask(result) : { kind: 'message', text: textOf(result.parts), context: result.contextId };
    }
  }
}

async function answer(client, asked) {
  try {
    for await (const event of verbs(client, asked)) say({ id: asked.id, ...event });
    say({ id: asked.id, over: true });
  } catch (problem) {
    say({ id: asked.id, error: `${problem.name}: ${problem.message}` });
  }
}

const client = await connect();
say({ ready: true });
const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => answer(client, JSON.parse(line)));
lines.on('close', () => process.exit(0));
