/** The settings of a listener that is created or changed over the API. */

import { Button, Drawer, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { useState, type FormEvent } from 'react';
import { ApiError, useChange, type Schemas } from '../../api/client';
import type { SchemaScope } from '../../api/json-schema';
import { objectPath, send, type Fields } from '../../api/objects';
import { useSchema } from '../../api/schemas';
import { ctlFields, ShowCall } from '../../ui/show-call';
import { FormFields, useForm, type Field } from '../../ui/object-form';
import { Loading } from '../../ui/states';
import { listenersPath, type Certificate } from './listener-objects';

interface ListenerEditorProps {
  /** Absent: a new listener. */
  listener?: Schemas['Listener'];
  certificates: Certificate[];
  onClose: () => void;
}

export function ListenerEditor(props: ListenerEditorProps) {
  const scope = useSchema('ListenerInput');
  return (
    <Drawer
      opened
      onClose={props.onClose}
      position="right"
      size="lg"
      title={props.listener ? <Trans>Listener {props.listener.name}</Trans> : <Trans>New listener</Trans>}
    >
      {scope ? <EditorForm {...props} scope={scope} /> : <Loading />}
    </Drawer>
  );
}

const hasTls = (values: Fields) => values.protocol === 'mqtts' || values.protocol === 'wss';
const hasWebSocket = (values: Fields) => values.protocol === 'ws' || values.protocol === 'wss';

/** The fields of TLS beside the others, because the form has one level. */
function flattened(definition: Fields): Fields {
  const { tls, ...rest } = definition;
  return { ...rest, ...(tls as Fields | undefined) };
}

const tlsFields = ['certificate', 'client_ca', 'require_client_certificate', 'common_name_as_username'];
const webSocketFields = ['websocket_path', 'relay_path', 'allowed_origins', 'compression'];

function definitionOf(values: Fields): Fields {
  const isOf = (names: string[]) => (entry: [string, unknown]) => names.includes(entry[0]);
  const tls = Object.entries(values).filter(isOf(tlsFields));
  const rest = Object.entries(values).filter(
    (entry) => !isOf(tlsFields)(entry) && (hasWebSocket(values) || !isOf(webSocketFields)(entry)),
  );
  return { ...Object.fromEntries(rest), ...(hasTls(values) ? { tls: Object.fromEntries(tls) } : {}) };
}

/** The schema of the form: that of the request, with the fields of TLS on the same level. */
function flattenedScope(scope: SchemaScope): SchemaScope {
  const { tls: _, ...properties } = scope.root.properties ?? {};
  const ofTls = scope.schemas.ListenerTlsInput?.properties ?? {};
  return { ...scope, root: { ...scope.root, properties: { ...properties, ...ofTls } } };
}

function useFields(certificates: Certificate[]): Field[] {
  const { t } = useLingui();
  const withKey = certificates.filter((each) => each.has_private_key).map(({ id }) => id);
  return [
    {
      name: 'protocol',
      label: t`Protocol`,
      control: 'select',
      options: [
        { value: 'mqtt', label: t`MQTT over TCP` },
        { value: 'mqtts', label: t`MQTT over TLS` },
        { value: 'ws', label: t`WebSocket` },
        { value: 'wss', label: t`WebSocket over TLS` },
        { value: 'unix', label: t`Unix socket` },
      ],
      help: '',
    },
    { name: 'bind', label: t`Address`, placeholder: '0.0.0.0:8883', help: t`Port 0 lets the system choose one.` },
    {
      name: 'certificate',
      label: t`Certificate`,
      control: 'select',
      options: withKey,
      help: withKey.length === 0 ? t`Upload a certificate with its key first.` : '',
      isShown: hasTls,
    },
    {
      name: 'client_ca',
      label: t`Authorities of clients`,
      control: 'select',
      options: certificates.map(({ id }) => id),
      help: t`Empty: clients need no certificate.`,
      isShown: hasTls,
    },
    {
      name: 'require_client_certificate',
      label: t`Reject clients without a certificate`,
      control: 'switch',
      help: '',
      isShown: (values) => hasTls(values) && Boolean(values.client_ca),
    },
    {
      name: 'common_name_as_username',
      label: t`The common name of the certificate is the user name`,
      control: 'switch',
      help: '',
      isShown: (values) => hasTls(values) && Boolean(values.client_ca),
    },
    { name: 'websocket_path', label: t`Path`, placeholder: '/mqtt', help: '', isShown: hasWebSocket },
    {
      name: 'allowed_origins',
      label: t`Origins of web pages`,
      placeholder: 'https://example.org',
      help: t`Separated by commas; empty: all.`,
      isShown: hasWebSocket,
    },
    {
      name: 'allow_anonymous',
      label: t`Clients without a user name`,
      control: 'switch',
      help: t`Otherwise they may connect only on loopback addresses and Unix sockets.`,
    },
    {
      name: 'max_connections',
      label: t`Most connections`,
      control: 'number',
      placeholder: '1000000',
      help: '',
    },
    {
      name: 'max_new_connections_per_s',
      label: t`Most new connections per second`,
      control: 'number',
      help: t`Empty: no limit.`,
    },
  ];
}

function EditorForm({ listener, certificates, onClose, scope: request }: ListenerEditorProps & { scope: SchemaScope }) {
  const { t } = useLingui();
  const [scope] = useState(() => flattenedScope(request));
  const initial = (listener?.definition as Fields | undefined) ?? { protocol: 'mqtts', bind: '0.0.0.0:8883' };
  const form = useForm(scope, undefined, flattened(initial));
  const [name, setName] = useState(listener?.name ?? '');
  const fields = useFields(certificates);
  const body = definitionOf(form.values);
  const path = objectPath(listenersPath, name || 'NAME');
  const save = useChange(() => send('PUT', path, { body }), [['listeners'], ['certificates']]);
  const field = save.error instanceof ApiError ? save.error.field?.replace(/^tls\./, '') : undefined;
  const isFieldShown = fields.some((each) => each.name === field);
  const isNamed = /^[a-z0-9_-]{1,32}$/.test(name);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!form.submit() || !isNamed) return;
    save.mutate(undefined, {
      onSuccess: () => {
        notifications.show({ message: listener ? t`${name} was replaced.` : t`${name} accepts connections.` });
        onClose();
      },
    });
  };
  return (
    <form onSubmit={submit} noValidate>
      <Stack gap="md">
        {listener === undefined && (
          <TextInput
            label={t`Name`}
            required
            value={name}
            onChange={(event) => setName(event.currentTarget.value)}
            error={
              (name !== '' || form.isSubmitted) && !isNamed ? t`1 to 32 lower-case letters, digits, - and _` : undefined
            }
          />
        )}
        <FormFields
          form={form}
          scope={scope}
          fields={fields}
          rejected={save.error && field ? { field, message: save.error.message } : undefined}
        />
        {listener && (
          <Text size="sm" c="dimmed">
            <Trans>Its connections are closed when it is replaced.</Trans>
          </Text>
        )}
        {save.error && !isFieldShown && (
          <Text size="sm" c="var(--tg-critical)" role="alert">
            {save.error.message}
          </Text>
        )}
      </Stack>
      <div className="drawer-footer">
        <ShowCall method="PUT" path={path} body={body} ctl={`listeners set ${name || 'NAME'} ${ctlFields(body)}`} />
        <Button type="submit" loading={save.isPending} disabled={listener !== undefined && !form.isChanged}>
          {listener ? <Trans>Replace</Trans> : <Trans>Create</Trans>}
        </Button>
      </div>
    </form>
  );
}
