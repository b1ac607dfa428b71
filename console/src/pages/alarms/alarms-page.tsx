import { Trans, useLingui } from '@lingui/react/macro';
import { useCaller } from '../../api/session';
import { formatNumber } from '../../format';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { useUrlState } from '../../ui/url-state';
import { AlarmList, useAlarmCounts } from './alarm-list';
import { AlarmRuleOverview } from './alarm-rule-overview';
import { NodeAlarmRules } from './node-alarm-rules';
import { Notifications } from './notifications';
import { severities, SeverityName } from './severity';

export default function AlarmsPage() {
  const { t } = useLingui();
  const caller = useCaller();
  return (
    <Page title={t`Alarms`} description={<Trans>Faults of devices and of the node, as they happen.</Trans>}>
      <PageTabs
        tabs={[
          {
            id: 'alarms',
            label: <Trans>Alarms</Trans>,
            content: (
              <div className="page">
                {caller.role !== null && <Counts />}
                <AlarmList />
              </div>
            ),
          },
          { id: 'rules', label: <Trans>Alarm rules</Trans>, content: <AlarmRuleOverview /> },
          { id: 'notifications', label: <Trans>Notifications</Trans>, content: <Notifications /> },
          {
            id: 'node',
            label: <Trans>Node alarms</Trans>,
            isListed: caller.role !== null,
            content: <NodeAlarmRules />,
          },
        ]}
      />
    </Page>
  );
}

/** Active alarms by severity; a tile filters the list. */
function Counts() {
  const counts = useAlarmCounts();
  const [severity, setSeverity] = useUrlState('severity');
  return (
    <div className="tiles">
      {severities.map((each) => {
        const count = counts.data?.active_by_severity[each] ?? 0;
        const isChosen = severity === each;
        const critical = each === 'CRITICAL' || each === 'MAJOR' ? 'state-critical' : 'state-warning';
        return (
          <button
            key={each}
            type="button"
            className="tile tile-button"
            aria-pressed={isChosen}
            onClick={() => setSeverity(isChosen ? '' : each)}
          >
            <span className="tile-label">
              <SeverityName severity={each} />
            </span>
            <span className={`tile-value ${count > 0 ? critical : ''}`}>{counts.data ? formatNumber(count) : '–'}</span>
          </button>
        );
      })}
    </div>
  );
}
