import { Fragment, lazy, Suspense, type ComponentType } from 'react';
import { Redirect, Route, Switch, useLocation } from 'wouter';
import { useSession } from './api/session';
import { ChangePasswordPage } from './pages/access/change-password-page';
import { ExpiredSession, LoginPage } from './pages/access/login-page';
import { registerPath } from './pages/access/registration';
import { Shell } from './shell';
import { ErrorBoundary } from './ui/error-boundary';
import { Loading } from './ui/states';
import { isNodeOnly } from './navigation';
import { ForbiddenPage } from './pages/forbidden-page';
import { NotFoundPage } from './pages/not-found-page';

/** Pages by path; each is loaded when it is first opened. */
export const pages: [string, ComponentType][] = [
  ['/', lazy(() => import('./pages/home/home-page'))],
  ['/clients', lazy(() => import('./pages/clients/clients-page'))],
  ['/clients/:id', lazy(() => import('./pages/clients/client-page'))],
  ['/live', lazy(() => import('./pages/live/live-page'))],
  ['/chains', lazy(() => import('./pages/chains/chains-page'))],
  ['/chains/:id', lazy(() => import('./pages/chains/chain-page'))],
  ['/connectors', lazy(() => import('./pages/connectors/connectors-page'))],
  ['/connectors/sinks/:name', lazy(() => import('./pages/connectors/sink-page'))],
  ['/rules', lazy(() => import('./pages/rules/rules-page'))],
  ['/rules/:name', lazy(() => import('./pages/rules/rule-page'))],
  ['/devices', lazy(() => import('./pages/devices/devices-page'))],
  ['/devices/:id', lazy(() => import('./pages/devices/device-page'))],
  ['/access/mqtt', lazy(() => import('./pages/access/mqtt-access-page'))],
  ['/access/people', lazy(() => import('./pages/access/people-page'))],
  ['/access/audit', lazy(() => import('./pages/access/audit-page'))],
  ['/files', lazy(() => import('./pages/files/files-page'))],
  ['/dashboards', lazy(() => import('./pages/dashboards/dashboards-page'))],
  ['/dashboards/:id', lazy(() => import('./pages/dashboards/dashboard-page'))],
  ['/telemetry', lazy(() => import('./pages/telemetry/telemetry-page'))],
  ['/cluster', lazy(() => import('./pages/cluster/cluster-page'))],
  ['/simulations', lazy(() => import('./pages/simulations/simulations-page'))],
  ['/simulations/:name', lazy(() => import('./pages/simulations/simulation-page'))],
  ['/jobs', lazy(() => import('./pages/jobs/jobs-page'))],
  ['/settings', lazy(() => import('./pages/settings/settings-page'))],
  ['/profile', lazy(() => import('./pages/settings/profile-page'))],
  ['/products', lazy(() => import('./pages/products/products-page'))],
  ['/products/:id', lazy(() => import('./pages/products/product-page'))],
  ['/groups', lazy(() => import('./pages/groups/groups-page'))],
  ['/groups/:id', lazy(() => import('./pages/groups/group-page'))],
  ['/firmware', lazy(() => import('./pages/firmware/firmware-page'))],
  ['/firmware/campaigns/:id', lazy(() => import('./pages/firmware/campaign-page'))],
  ['/relay', lazy(() => import('./pages/relay/relay-page'))],
  ['/relay/:id', lazy(() => import('./pages/relay/endpoint-page'))],
  ['/alarms', lazy(() => import('./pages/alarms/alarms-page'))],
];

/** The page behind share links of dashboards, which needs no session. */
export const kioskPath = '/kiosk';

const RegisterPage = lazy(() => import('./pages/access/register-page'));
const KioskPage = lazy(() => import('./pages/dashboards/kiosk-page'));

export function App() {
  const session = useSession();
  const [location] = useLocation();
  // Needs no login: the link has a token of its own.
  if (location === kioskPath) {
    return (
      <Suspense fallback={<Loading />}>
        <KioskPage />
      </Suspense>
    );
  }
  if (session.state === 'starting') return null;
  if (session.state === 'logged-out' && location === registerPath) {
    return (
      <Suspense fallback={<Loading />}>
        <RegisterPage />
      </Suspense>
    );
  }
  if (session.state === 'logged-out') return <LoginPage />;
  const { caller } = session;
  if (caller.mustChangePassword && session.state === 'ready') return <ChangePasswordPage caller={caller} />;
  return (
    <Fragment key={caller.name}>
      <Shell>
        <ErrorBoundary key={location}>
          <Suspense fallback={<Loading />}>
            <Switch>
              {/* Home shows the node, which members of a namespace cannot see. */}
              {caller.role === null && (
                <Route path="/">
                  <Redirect to="/devices" replace />
                </Route>
              )}
              <Route path={registerPath}>
                <Redirect to="/" replace />
              </Route>
              {caller.role === null && isNodeOnly(location) && <Route component={ForbiddenPage} />}
              {pages.map(([path, page]) => (
                <Route key={path} path={path} component={page} />
              ))}
              <Route component={NotFoundPage} />
            </Switch>
          </Suspense>
        </ErrorBoundary>
      </Shell>
      {session.state === 'expired' && <ExpiredSession />}
    </Fragment>
  );
}
