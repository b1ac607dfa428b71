import { Alert, Button, Modal, Stack, Text, TextInput } from '@mantine/core';
import { notifications } from '@mantine/notifications';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlayerPause, IconPlayerPlay, IconSettings, IconTrash } from '@tabler/icons-react';
import { useState } from 'react';
import { useLocation, useParams } from 'wouter';
import { queryClient, useRead } from '../../api/client';
import {
  isStored,
  objectPath,
  send,
  useObject,
  useSave,
  type ConfigurationObject,
  type Fields,
} from '../../api/objects';
import { mayInNamespace, useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { ConfirmDeletion } from '../../ui/confirm-deletion';
import { ObjectEditor, deleteCall, saveCall } from '../../ui/object-editor';
import { MissingNodes } from '../../ui/missing-nodes';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { PendingPage } from '../../ui/pending-page';
import { ShowCall } from '../../ui/show-call';
import { EmptyState } from '../../ui/states';
import { AlarmList } from '../alarms/alarm-list';
import { endpointsPath, useRelayBase, type EndpointStatus, type RelayEndpoint } from './endpoint-address';
import { EndpointAlarmRules } from './endpoint-alarm-rules';
import { EndpointConnections } from './endpoint-connections';
import { EndpointControls } from './endpoint-controls';
import { EndpointDevices } from './endpoint-devices';
import { EndpointExamples } from './endpoint-examples';
import { EndpointHistory } from './endpoint-history';
import { useEndpointKind } from './endpoint-kind';
import { EndpointMessages } from './endpoint-messages';
import { EndpointOverview, productOf } from './endpoint-overview';
import { EndpointProtocol } from './endpoint-protocol';
import { EndpointState } from './endpoint-state';
import { EndpointTest } from './endpoint-test';

const refreshMs = 2_000;

export default function EndpointPage() {
  const { t } = useLingui();
  const caller = useCaller();
  const { id: coded = '' } = useParams<{ id: string }>();
  const id = decodeURIComponent(coded);
  const [isEditing, setEditing] = useState(false);
  const kind = useEndpointKind();
  const base = useRelayBase();
  const endpoint = useObject<RelayEndpoint>(endpointsPath, id, { every: refreshMs * 5 });
  const status = useRead(
    [endpointsPath, 'status', id],
    (signal) => send<EndpointStatus>('GET', `${objectPath(endpointsPath, id)}/status`, { signal }),
    { every: refreshMs },
  );
  if (!endpoint.data) {
    return (
      <PendingPage
        title={id}
        query={endpoint}
        missing={<EmptyState title={<Trans>There is no endpoint with this id</Trans>} />}
      />
    );
  }
  const data = endpoint.data;
  const address = base ? base + data.id : undefined;
  const mayChange = mayInNamespace(caller, 'operator', data.namespace);
  const connections = status.data?.current_connections ?? 0;
  return (
    <Page
      title={data.name || data.id}
      aside={
        <>
          <EndpointState endpoint={data} status={status.data} />
          <MissingNodes nodes={status.data?.missing_nodes} />
        </>
      }
      actions={
        <>
          <ShowCall method="GET" path={objectPath(endpointsPath, id)} ctl={`endpoints show ${id}`} />
          {mayChange && isStored(data) && (
            <>
              <Switching endpoint={data} />
              <Button variant="default" leftSection={<IconSettings size={14} />} onClick={() => setEditing(true)}>
                <Trans>Settings</Trans>
              </Button>
              <Remove endpoint={data} connections={connections} />
            </>
          )}
          {!isStored(data) && (
            <Button variant="default" leftSection={<IconSettings size={14} />} onClick={() => setEditing(true)}>
              <Trans>Settings</Trans>
            </Button>
          )}
        </>
      }
    >
      {data.disabled_reason && (
        <Alert color="yellow" variant="light" title={<Trans>Nobody can connect</Trans>}>
          {data.disabled_reason}
        </Alert>
      )}
      <PageTabs
        tabs={[
          {
            id: 'overview',
            label: <Trans>Overview</Trans>,
            content: (
              <EndpointOverview endpoint={data} status={status.data} address={address} readAt={status.dataUpdatedAt} />
            ),
          },
          { id: 'messages', label: <Trans>Last messages</Trans>, content: <EndpointMessages id={id} /> },
          {
            id: 'connections',
            label: (
              <>
                <Trans>Connections</Trans> ({formatNumber(connections)})
              </>
            ),
            content: <EndpointConnections id={id} mayChange={mayChange} />,
          },
          {
            id: 'devices',
            label: <Trans>Devices</Trans>,
            content: <EndpointDevices endpoint={data} mayChange={mayChange} />,
          },
          {
            id: 'history',
            label: <Trans>Data</Trans>,
            content: <EndpointHistory endpoint={data} />,
          },
          {
            id: 'alarms',
            label: <Trans>Alarms</Trans>,
            content: <AlarmList product={{ id: productOf(data), devicePrefix: `${data.id}:` }} />,
          },
          { id: 'alarm-rules', label: <Trans>Alarm rules</Trans>, content: <EndpointAlarmRules endpoint={data} /> },
          {
            id: 'controls',
            label: <Trans>Control panel</Trans>,
            content: <EndpointControls endpoint={data} mayChange={mayChange} />,
          },
          { id: 'test', label: <Trans>Test</Trans>, content: <EndpointTest endpoint={data} address={address} /> },
          {
            id: 'examples',
            label: <Trans>Example clients</Trans>,
            content: (
              <div className="page">
                <EndpointExamples endpoint={data} address={address} />
                <EndpointProtocol endpoint={data} />
              </div>
            ),
          },
        ]}
      />
      {isEditing && (
        <ObjectEditor
          kind={kind}
          object={data}
          mayChange={mayChange}
          onClose={() => {
            setEditing(false);
            void queryClient.invalidateQueries({ queryKey: [endpointsPath] });
          }}
          title={t`Settings of ${id}`}
        />
      )}
    </Page>
  );
}

/** Disables the endpoint with a reason, or enables it. */
function Switching({ endpoint }: { endpoint: RelayEndpoint }) {
  const { t } = useLingui();
  const [isAsking, setAsking] = useState(false);
  const [reason, setReason] = useState('');
  const kind = useEndpointKind();
  const save = useSave(endpointsPath);
  const apply = (disabled_reason: string | null) => {
    const { origin: _o, declared_at: _d, created_at_ms: _c, updated_at_ms: _u, version, ...rest } = endpoint;
    const { id, has_access_key: _h, ...body } = rest as Fields & { id: string };
    save.mutate(
      { id, version, body: { ...body, disabled_reason } },
      {
        onSuccess: () => setAsking(false),
        onError: (error) => !isAsking && notifications.show({ color: 'red', message: error.message }),
      },
    );
  };
  if (endpoint.disabled_reason) {
    return (
      <Button leftSection={<IconPlayerPlay size={14} />} loading={save.isPending} onClick={() => apply(null)}>
        <Trans>Enable</Trans>
      </Button>
    );
  }
  return (
    <>
      <Button variant="default" leftSection={<IconPlayerPause size={14} />} onClick={() => setAsking(true)}>
        <Trans>Disable</Trans>
      </Button>
      {isAsking && (
        <Modal opened onClose={() => setAsking(false)} title={<Trans>Disable {endpoint.id}?</Trans>}>
          <form
            onSubmit={(event) => {
              event.preventDefault();
              apply(reason.trim());
            }}
          >
            <Stack gap="sm">
              <Text size="sm">
                <Trans>All connections are closed, and nobody can connect until the endpoint is enabled again.</Trans>
              </Text>
              <TextInput
                label={t`Reason`}
                description={t`Sent to clients that try to connect.`}
                required
                data-autofocus
                maxLength={255}
                value={reason}
                onChange={(event) => setReason(event.currentTarget.value)}
              />
              {save.error && (
                <Text size="sm" c="var(--tg-critical)" role="alert">
                  {save.error.message}
                </Text>
              )}
              <div className="row wrap" style={{ justifyContent: 'space-between' }}>
                <ShowCall {...saveCall(kind, endpoint.id, { disabled_reason: reason })} />
                <Button type="submit" color="red.8" loading={save.isPending} disabled={reason.trim() === ''}>
                  <Trans>Disable</Trans>
                </Button>
              </div>
            </Stack>
          </form>
        </Modal>
      )}
    </>
  );
}

function Remove({ endpoint, connections }: { endpoint: RelayEndpoint; connections: number }) {
  const { t } = useLingui();
  const [, navigate] = useLocation();
  const [isAsking, setAsking] = useState(false);
  const kind = useEndpointKind();
  const { id } = endpoint;
  return (
    <>
      <Button variant="default" leftSection={<IconTrash size={14} />} onClick={() => setAsking(true)}>
        <Trans>Delete</Trans>
      </Button>
      {isAsking && (
        <ConfirmDeletion
          title={<Trans>Delete {id}?</Trans>}
          action={<Trans>Delete the endpoint</Trans>}
          call={deleteCall(kind, id)}
          onClose={() => setAsking(false)}
          invalidates={[[endpointsPath]]}
          message={t`${id} was deleted.`}
          onDeleted={() => navigate('/relay')}
        >
          <Text size="sm">{kind.deletion(endpoint as ConfigurationObject)}</Text>
          {connections > 0 && (
            <Text size="sm" mt="xs">
              <Trans>{formatNumber(connections)} connections are open now.</Trans>
            </Text>
          )}
        </ConfirmDeletion>
      )}
    </>
  );
}
